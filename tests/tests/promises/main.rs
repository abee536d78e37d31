//! What the README and the design promise to users, as stories told from outside.
#![forbid(unsafe_code)]
