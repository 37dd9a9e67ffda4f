"""The plug-in that swift.yaml names in `external_plugins`."""

from reweigh.integrations.swift import register

register("rgd:tau=3")  # or "dft", "entropy", "rho" with reference="DIR"; level="sequence" for one weight per sequence
