//! Where a policy says its module is. Pure.

/// The kind of a module's source, told apart as the loader does (`loader/src/source/reference.rs`): first by the scheme, then by the form of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source<'m> {
    /// A file by its path, which begins at the manifest's folder unless it is absolute.
    Path(&'m str),
    /// A file by its address, `file://`, whose path is absolute.
    FileUrl,
    /// A web address.
    Web,
    /// An artifact in a registry, or an address that no source knows: reading it as an artifact tells what is wrong.
    Registry,
}

impl<'m> Source<'m> {
    /// The source of `spec.module`.
    pub(crate) fn of(module: &'m str) -> Self {
        let module = module.trim();
        if let Some(path) = module.strip_prefix("file:") {
            return if path.starts_with("//") { Self::FileUrl } else { Self::Path(path) };
        }
        match module.split_once("://") {
            Some((scheme, _)) if ["https", "http"].iter().any(|web| scheme.eq_ignore_ascii_case(web)) => Self::Web,
            Some(_) => Self::Registry,
            None if module.starts_with(['/', '.']) || module.ends_with(".wasm") => Self::Path(module),
            None => Self::Registry,
        }
    }

    /// Whether it is a file, which no cluster takes.
    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::Path(_) | Self::FileUrl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_decides_before_the_end_of_the_name_does() {
        for (module, source) in [
            ("./a", Source::Path("./a")),
            (" modules/a.wasm\n", Source::Path("modules/a.wasm")),
            ("/opt/a.wasm", Source::Path("/opt/a.wasm")),
            ("file:a", Source::Path("a")),
            ("file:///opt/a.wasm", Source::FileUrl),
            ("https://a.example/b.wasm", Source::Web),
            ("HTTP://a.example/b", Source::Web),
            ("registry://a.example/b.wasm", Source::Registry),
            ("oci://a.example/b:v1", Source::Registry),
            ("a.example/b:v1", Source::Registry),
            ("a", Source::Registry),
            ("ftp://a.example/b.wasm", Source::Registry),
        ] {
            assert_eq!(Source::of(module), source, "{module}");
            assert_eq!(source.is_file(), matches!(source, Source::Path(_) | Source::FileUrl), "{module}");
        }
    }
}
