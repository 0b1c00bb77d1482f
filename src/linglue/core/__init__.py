"""What every room stands on: files that appear whole, locks, pools, fingerprints, optional packages."""
