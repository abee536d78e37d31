//! No code: only dependencies, with the features that other packages of the workspace want of them.
#![forbid(unsafe_code)]
