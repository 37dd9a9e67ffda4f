// A second device made of host memory, to show without an accelerator that nothing depends on there being only one.
//
// Tensors of it live where those of the processor live, but torch does not know that: a kernel that is handed tensors
// of both raises, as CUDA's do, and only a copy takes values from one side to the other. Every operation is computed by
// the processor's own kernel, so that the numbers are the processor's.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>

namespace {

using at::Tensor;
constexpr auto kSecond = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kCount = 2;
thread_local c10::DeviceIndex current = 0;

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {data, data, &std::free, c10::Device(kSecond, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kSecond, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSecond; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSecond, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kCount, "there are ", int(kCount), " devices, got number ", int(device.index()));
    current = device.index() < 0 ? 0 : device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index() < 0 ? 0 : device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kCount; }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  // All work is done when a kernel returns: events have nothing to wait for.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kCount; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({kSecond, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({kSecond, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto grown = allocator.allocate(bytes);
    std::memcpy(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(std::move(grown));
    storage.set_nbytes(bytes);
  }
};

// The same memory as a tensor of the processor: only for the copies and reads below.
Tensor on_host(const Tensor& x) {
  if (x.device().is_cpu()) return x;
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), [kept = x](void*) {}, x.options().device(at::kCPU));
}

// As some accelerators have no double precision, the device of number 1 has none.
at::ScalarType dtype_on(c10::Device device, std::optional<at::ScalarType> dtype) {
  auto wanted = c10::dtype_or_default(dtype);
  TORCH_CHECK_TYPE(device.index() != 1 || wanted != at::kDouble, "device number 1 has no float64");
  return wanted;
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kSecond, current)));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype_on(guard.current_device(), dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kSecond, current)));
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype_on(guard.current_device(), dtype));
}

const Tensor& resize(const Tensor& x, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(x.device());
  return at::native::resize_(x, size, format);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  auto there = on_host(to);
  there.copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& x) { return on_host(x).item(); }

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                   c10::IntArrayRef output_padding, int64_t groups) {
  std::optional<Tensor> shift;
  if (bias && bias->defined()) shift = on_host(*bias);
  return at::convolution(on_host(x), on_host(weight), shift, stride, padding, dilation, transposed, output_padding,
                         groups).to(x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                        c10::IntArrayRef stride, c10::IntArrayRef padding,
                                                        c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  auto [dx, dw, db] = at::convolution_backward(
      on_host(gradient), on_host(x), on_host(weight),
      wanted[2] ? c10::OptionalIntArrayRef({weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)})
                : c10::OptionalIntArrayRef(),
      stride, padding, dilation, transposed, output_padding, groups, wanted);
  auto back = [&](const Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// Its schema does not say that it changes the running statistics, so the fallback would lose the change.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
                                              const std::optional<Tensor>& variance, bool training, double momentum,
                                              double eps) {
  auto here = [](const std::optional<Tensor>& t) { return t && t->defined() ? std::optional(on_host(*t)) : std::nullopt; };
  auto [y, batch_mean, batch_deviation] = at::native_batch_norm(on_host(x), here(weight), here(bias), here(mean),
                                                                here(variance), training, momentum, eps);
  return {y.to(x.device()), batch_mean.to(x.device()), batch_deviation.to(x.device())};
}

// What CUDA's kernels refuse: tensors of two devices. A single number of the processor may stand beside any tensor.
void refuse_mixture(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<c10::Device> first;
  auto look = [&](const Tensor& x) {
    if (!x.defined() || (x.device().is_cpu() && x.dim() == 0)) return;
    TORCH_CHECK(!first || *first == x.device(), op.schema().name(), ": expected all tensors to be on the same device, got ",
                *first, " and ", x.device());
    first = x.device();
  };
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) look(value.toTensor());
    else if (value.isTensorList()) for (const Tensor& x : value.toTensorVector()) look(x);
    else if (value.isOptionalTensorList())
      for (const auto& x : value.toOptionalTensorVector()) if (x) look(*x);
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_mixture(op, *stack);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// Mixed precision for the operations that matter; the others take what they are given.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

}  // namespace
