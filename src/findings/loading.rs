//! Findings about which file is loaded: not found, unusable, shadowed, wrong version.
