//! Unsafe code is forbidden in every crate, except for one block of the evaluator.

use crate::files::TextFile;
use crate::workspace::Package;

/// The crate that loads precompiled modules, which needs unsafe code.
const EXCEPTION_ROOT: &str = "evaluator/src/lib.rs";

/// The file with the block.
const EXCEPTION: &str = "evaluator/src/volume/artifact.rs";

// Written in two parts, so that this file does not break the rule.
const FORBID: &str = concat!("#![forbid(", "unsafe_code)]");
const PERMISSIONS: [&str; 2] = [concat!("allow(", "unsafe_code"), concat!("expect(", "unsafe_code")];
const KEYWORD: &str = concat!("un", "safe");

pub(super) fn check(packages: &[Package], files: &[TextFile]) -> Vec<String> {
    let mut problems = Vec::new();
    for root in packages.iter().flat_map(|package| &package.roots) {
        let Some(file) = files.iter().find(|file| file.path == *root) else { continue };
        if root.as_os_str() != EXCEPTION_ROOT && !file.text.lines().any(|line| line.trim() == FORBID) {
            problems.push(format!("{} lacks {FORBID}", root.display()));
        }
    }
    // Guests are not checked: their protocol needs raw memory, and they run in a sandbox.
    for file in files.iter().filter(|file| file.is_rust() && !file.path.starts_with("guests")) {
        let (blocks, allowed) = count(&file.text);
        let expected = usize::from(file.path.as_os_str() == EXCEPTION);
        if (blocks, allowed) != (expected, expected) {
            problems.push(format!(
                "{} has {blocks} unsafe blocks or items and {allowed} permissions for them, not {expected} of each: the only \
                 place for unsafe code is one block in {EXCEPTION}",
                file.path.display(),
            ));
        }
    }
    if !files.iter().any(|file| file.path.as_os_str() == EXCEPTION) {
        problems
            .push(format!("{EXCEPTION} is not there: the only unsafe block has moved, and this rule must follow it"));
    }
    problems
}

/// Unsafe blocks or items, and permissions for them, outside comments.
fn count(text: &str) -> (usize, usize) {
    let code: String = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
        .fold(String::with_capacity(text.len()), |code, line| code + line + "\n");
    let uses = ["{", "fn ", "impl ", "extern "].iter().map(|next| code.matches(&format!("{KEYWORD} {next}")).count());
    // Attributes with a long reason are broken into several lines.
    let dense: String = code.split_whitespace().collect();
    let permissions = PERMISSIONS.iter().map(|permission| dense.matches(permission).count());
    (uses.sum(), permissions.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.to_owned() }
    }

    fn package(root: &str) -> Package {
        Package { name: "one".to_owned(), roots: vec![root.into()], features: vec![] }
    }

    fn artifact() -> TextFile {
        file(EXCEPTION, &format!("#[{}, reason = \"…\")]\nlet module = {KEYWORD} {{ load(path) }};\n", PERMISSIONS[0]))
    }

    #[test]
    fn the_one_block_is_fine() {
        let files = [artifact(), file("one/src/lib.rs", &format!("//! One.\n{FORBID}\n"))];
        assert_eq!(check(&[package("one/src/lib.rs")], &files), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_does_not_forbid_is_named() {
        let files = [artifact(), file("one/src/lib.rs", "//! One.\n")];
        assert_eq!(check(&[package("one/src/lib.rs")], &files), [format!("one/src/lib.rs lacks {FORBID}")]);
    }

    #[test]
    fn a_second_block_is_found_wherever_it_is() {
        let block = format!("{KEYWORD} {{ }}\n");
        assert_eq!(check(&[], &[artifact(), file("loader/src/fetch.rs", &block)]).len(), 1);
        let twice = file(EXCEPTION, &format!("{}{block}", artifact().text));
        assert_eq!(check(&[], &[twice]).len(), 1);
    }

    #[test]
    fn a_permission_may_be_broken_into_lines() {
        let text = format!("#[expect(\n    {},\n    reason = \"…\"\n)]\n{KEYWORD} {{ }}\n", concat!("unsafe", "_code"));
        assert_eq!(check(&[], &[file(EXCEPTION, &text)]), Vec::<String>::new());
    }

    #[test]
    fn comments_and_guests_are_left_alone() {
        let comment = file("loader/src/fetch.rs", &format!("// {KEYWORD} {{\n/// {KEYWORD} fn\n"));
        let guest = file("guests/kit/src/lib.rs", &format!("{KEYWORD} {{ }}\n"));
        assert_eq!(check(&[], &[artifact(), comment, guest]), Vec::<String>::new());
    }

    #[test]
    fn the_block_that_moved_is_noticed() {
        assert_eq!(check(&[], &[]).len(), 1);
    }
}
