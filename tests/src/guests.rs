//! Guests that are built with the SDKs of Kubewarden, and make the host calls that their settings name.

use std::env;
use std::fs;
use std::path::PathBuf;

use portcullis_testkit::{example, skip};

use crate::Policy;

/// A guest whose settings name the calls of its host, and which denies with the answers to them.
#[derive(Debug, Clone)]
pub struct SdkGuest {
    /// The language of its SDK: `rust` for waPC, `go` for WASI.
    pub sdk: &'static str,
    /// The module.
    pub module: Vec<u8>,
}

impl SdkGuest {
    /// The guest in Rust, which is kept in the repository.
    pub fn rust() -> Self {
        Self { sdk: "rust", module: example("host-capabilities") }
    }

    /// The guest in Go, which is too large to be kept: `None` unless the test run has built it.
    pub fn go() -> Option<Self> {
        let built = env::var_os("PORTCULLIS_GUESTS_DIR").map(PathBuf::from);
        let module = built.and_then(|built| fs::read(built.join("host-capabilities-go.wasm")).ok());
        if module.is_none() {
            skip("host-capabilities-go was not built; `cargo xtask test` builds it where there is Go");
        }
        module.map(|module| Self { sdk: "go", module })
    }

    /// All guests that exist.
    pub fn all() -> Vec<Self> {
        [Some(Self::rust()), Self::go()].into_iter().flatten().collect()
    }

    /// A cluster-wide policy of this guest. The name `asks` becomes `asks-go` for the guest in Go.
    pub fn policy(&self, name: &str) -> Policy {
        Policy::cluster(&format!("{name}-{}", self.sdk)).bytes(self.module.as_slice())
    }
}
