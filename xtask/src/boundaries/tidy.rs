//! Files must be short, begin with a sentence, and not name paths of the machine on which they were written.

use crate::files::TextFile;
use crate::workspace::Package;

/// A longer file usually has a second idea in it.
const MAX_LINES: usize = 500;

/// Files that may be longer, each with its reason.
const LONG: [(&str, &str); 0] = [];

/// A path that stands for any user's folder, in tests and documents.
const NOBODYS: &str = "/home/me";

// Written in two parts, so that this file does not break the rule.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(super) fn check(packages: &[Package], files: &[TextFile]) -> Vec<String> {
    let mut problems = Vec::new();
    for root in packages.iter().flat_map(|package| &package.roots) {
        let Some(file) = files.iter().find(|file| file.path == *root) else { continue };
        if !file.text.starts_with("//! ") {
            problems
                .push(format!("{} does not open with `//!`: say what the crate does and never does", root.display()));
        }
    }
    for file in files {
        problems.extend(empty(file));
        problems.extend(too_long(file));
        problems.extend(machine_paths(file));
    }
    problems
}

/// An empty page is usually one that was overwritten by accident.
fn empty(file: &TextFile) -> Option<String> {
    let is_page = file.path.extension().is_some_and(|ending| ending == "md");
    (is_page && file.text.trim().is_empty())
        .then(|| format!("{} is empty: write it, or remove it", file.path.display()))
}

fn too_long(file: &TextFile) -> Option<String> {
    let lines = file.text.lines().count();
    let is_source = file.is_rust() && file.path.iter().any(|part| part == "src");
    let listed = LONG.iter().any(|(path, _)| file.path.as_os_str() == *path);
    (is_source && lines > MAX_LINES && !listed).then(|| {
        format!(
            "{} has {lines} lines, more than {MAX_LINES}: find its second idea, or list it in xtask",
            file.path.display()
        )
    })
}

fn machine_paths(file: &TextFile) -> Vec<String> {
    let names_one = |line: &str| {
        MACHINE_PATHS.iter().any(|path| {
            // `a/home/b` and `https://host/home/` are not paths of a machine.
            let is_inner = |at: usize| line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}".contains(c));
            line.match_indices(path).any(|(at, _)| !is_inner(at) && !line[at..].starts_with(NOBODYS))
        })
    };
    let lines = file.text.lines().enumerate().filter(|(_, line)| names_one(line));
    lines
        .map(|(index, line)| {
            format!("{}:{} names a path of one machine: {}", file.path.display(), index + 1, line.trim())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn a_long_source_file_is_named_and_a_long_document_is_not() {
        let text = "\n".repeat(MAX_LINES + 1);
        assert_eq!(check(&[], &[file("guests/Cargo.lock", &text)]), Vec::<String>::new());
        assert_eq!(
            check(&[], &[file("loader/src/fetch.rs", &text)]),
            ["loader/src/fetch.rs has 501 lines, more than 500: find its second idea, or list it in xtask"],
        );
    }

    #[test]
    fn an_empty_page_is_named() {
        assert_eq!(check(&[], &[file("docs/a.md", "\n")]), ["docs/a.md is empty: write it, or remove it"]);
        assert_eq!(check(&[], &[file("docs/a.md", "# A\n"), file("none.txt", "")]), Vec::<String>::new());
    }

    #[test]
    fn a_crate_without_an_opening_sentence_is_named() {
        let package = Package { name: "one".to_owned(), roots: vec!["one/src/lib.rs".into()], features: vec![] };
        let problems = check(&[package], &[file("one/src/lib.rs", "mod one;\n")]);
        assert_eq!(problems, ["one/src/lib.rs does not open with `//!`: say what the crate does and never does"]);
    }

    #[test]
    fn a_path_of_a_machine_is_named_with_its_line() {
        let text = format!("cd here\ncd {}you/src\ncd {NOBODYS}/src\n", MACHINE_PATHS[2]);
        let expected = format!("a.md:2 names a path of one machine: cd {}you/src", MACHINE_PATHS[2]);
        assert_eq!(check(&[], &[file("a.md", &text)]), [expected]);
    }

    #[test]
    fn a_part_of_another_path_is_no_path_of_a_machine() {
        let text = format!("https://example.org{}page and guests{}x\n", MACHINE_PATHS[2], MACHINE_PATHS[0]);
        assert_eq!(check(&[], &[file("a.md", &text)]), Vec::<String>::new());
    }
}
