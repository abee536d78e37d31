//! Modules of a crate use each other in one direction.
//!
//! Sibling modules, each taken together with everything below it, must not use each other in a cycle: then any of them can
//! be read, tested and moved without the siblings that it does not need. A module and those inside it count as one here, so a
//! parent may use its children and they may use it. Uses are followed through re-exports to the file that defines a name, so
//! a parent that re-exports its children does not hide a cycle among them. Tests are left out.
//!
//! [`syn`] reads the files. Arguments of macros count where they are expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Token, UseTree};

use crate::files::TextFile;
use crate::workspace::Package;

/// Crates that still have cycles. A crate without cycles must be removed from the list.
pub(super) const NOT_YET: [&str; 0] = [];

/// A path below the root of a crate, such as `["plan", "claims"]`. The root's path is empty.
type Name = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// The imported and re-exported names, and the paths for which they stand.
    imports: BTreeMap<String, Name>,
    /// Everything that it names, as written, with `crate`, `self` and `super` already resolved.
    uses: BTreeSet<Name>,
}

/// The modules of a crate, by their paths.
type Modules = BTreeMap<Name, Module>;

/// The title of the check, which names the crates that it skips.
pub(super) fn title() -> String {
    if NOT_YET.is_empty() {
        return "boundaries: cycles".to_owned();
    }
    format!("boundaries: cycles (not yet in {})", NOT_YET.join(", "))
}

pub(super) fn check(packages: &[Package], files: &[TextFile], not_yet: &[&str]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for package in packages {
        let is_program = |root: &&PathBuf| root.ends_with("src/lib.rs") || root.ends_with("src/main.rs");
        let mut cycles = Vec::new();
        for root in package.roots.iter().filter(is_program) {
            let mut modules = Modules::new();
            read(files, root, Name::new(), &mut modules)?;
            cycles.extend(cycles_of(&modules));
        }
        match (not_yet.contains(&package.name.as_str()), cycles.is_empty()) {
            (true, true) => problems.push(format!("{} has no cycles any more: take it off the list", package.name)),
            (true, false) | (false, true) => {}
            (false, false) => problems.extend(cycles),
        }
    }
    Ok(problems)
}

/// Reads a module's file, and those of the modules that it declares.
fn read(files: &[TextFile], path: &Path, name: Name, modules: &mut Modules) -> Result<()> {
    let file = files.iter().find(|file| file.path == path);
    let text = &file.with_context(|| format!("{} is declared as a module and not there", path.display()))?.text;
    let parsed = syn::parse_file(text).with_context(|| format!("failed to parse {}", path.display()))?;
    let is_folder = ["lib.rs", "main.rs", "mod.rs"].iter().any(|root| path.ends_with(root));
    let folder = if is_folder { path.with_file_name("") } else { path.with_extension("") };
    take(files, path, &folder, parsed.items, name, modules)
}

/// Takes in the items of a module, whose children have their files in `folder`.
fn take(
    files: &[TextFile],
    path: &Path,
    folder: &Path,
    items: Vec<Item>,
    name: Name,
    modules: &mut Modules,
) -> Result<()> {
    let mut reader = Reader { name: &name, module: Module { file: path.to_owned(), ..Module::default() } };
    let mut children = Vec::new();
    for item in items {
        match item {
            Item::Mod(child) if is_test(&child.attrs) => {}
            Item::Mod(child) => children.push(child),
            item => {
                if let Item::Use(import) = &item
                    && !is_test(&import.attrs)
                {
                    reader.import(&import.tree);
                }
                reader.visit_item(&item);
            }
        }
    }
    let module = reader.module;
    modules.insert(name.clone(), module);
    for child in children {
        let ident = child.ident.to_string();
        let child_name = [&name[..], std::slice::from_ref(&ident)].concat();
        let below = folder.join(&ident);
        if let Some((_, items)) = child.content {
            take(files, path, &below, items, child_name, modules)?;
            continue;
        }
        let flat = below.with_extension("rs");
        let file = if files.iter().any(|file| file.path == flat) { flat } else { below.join("mod.rs") };
        read(files, &file, child_name, modules)?;
    }
    Ok(())
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|word| word.is_ident("test"))
    };
    attributes.iter().any(is_test)
}

/// Collects what a module names.
struct Reader<'a> {
    name: &'a Name,
    module: Module,
}

impl Reader<'_> {
    /// The path below the root, if the words begin with `crate`, `self`, `super` or a name in the module.
    fn resolve(&self, words: &[String]) -> Option<Name> {
        let mut base = self.name.clone();
        let mut rest = words;
        match words.first()?.as_str() {
            "crate" => (base, rest) = (Name::new(), &words[1..]),
            "self" => rest = &words[1..],
            _ => {
                while rest.first().is_some_and(|word| word == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
        }
        Some([base, rest.to_vec()].concat())
    }

    fn name_path(&mut self, path: &[String]) {
        self.module.uses.extend(self.resolve(path));
    }

    fn import(&mut self, tree: &UseTree) {
        for (path, alias) in flat(tree) {
            if let Some(path) = self.resolve(&path) {
                self.module.imports.insert(alias, path);
            }
        }
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, import: &syn::ItemUse) {
        for (path, _) in flat(&import.tree) {
            self.name_path(&path);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name_path(&words);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        if let Ok(arguments) = call.parse_body_with(Punctuated::<syn::Expr, Token![,]>::parse_terminated) {
            for argument in &arguments {
                self.visit_expr(argument);
            }
        }
    }
}

/// The paths of a `use`, each with the name that it introduces.
fn flat(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let behind = |word: &syn::Ident, rest: Vec<(Vec<String>, String)>| {
        let word = word.to_string();
        let joined = rest.into_iter().map(|(path, alias)| {
            let alias = if alias == "self" { word.clone() } else { alias };
            let path = if path == ["self"] { Vec::new() } else { path };
            ([vec![word.clone()], path].concat(), alias)
        });
        joined.collect()
    };
    match tree {
        UseTree::Path(path) => behind(&path.ident, flat(&path.tree)),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(rename) => vec![(vec![rename.ident.to_string()], rename.rename.to_string())],
        UseTree::Glob(_) => vec![(Vec::new(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(flat).collect(),
    }
}

/// The module that defines what a path names. Re-exports are followed.
fn definer(modules: &Modules, path: &[String], depth: usize) -> Option<Name> {
    let mut at = Name::new();
    for (index, word) in path.iter().enumerate() {
        let child = [&at[..], std::slice::from_ref(word)].concat();
        if modules.contains_key(&child) {
            at = child;
            continue;
        }
        let Some(import) = modules.get(&at).and_then(|module| module.imports.get(word)) else { return Some(at) };
        // Chains of re-exports have an end here; the name of another crate resolves to itself and is not below any
        // module.
        if depth == 8 || import[..] == path[..=index] {
            return None;
        }
        return definer(modules, &[&import[..], &path[index + 1..]].concat(), depth + 1);
    }
    Some(at)
}

/// A sentence for each cycle among sibling modules.
fn cycles_of(modules: &Modules) -> Vec<String> {
    // By parent: which child uses which, with a file that does.
    let mut graphs: BTreeMap<Name, BTreeMap<String, BTreeMap<String, &Path>>> = BTreeMap::new();
    for (name, module) in modules {
        for used in module.uses.iter().filter_map(|path| definer(modules, path, 0)) {
            let common = name.iter().zip(&used).take_while(|(one, other)| one == other).count();
            let (Some(from), Some(to)) = (name.get(common), used.get(common)) else { continue };
            let graph = graphs.entry(name[..common].to_vec()).or_default();
            graph.entry(from.clone()).or_default().entry(to.clone()).or_insert(&module.file);
        }
    }
    let mut problems = Vec::new();
    for (parent, graph) in &graphs {
        let mut done = BTreeSet::new();
        for start in graph.keys() {
            if done.contains(start) {
                continue;
            }
            let Some(cycle) = way(graph, start, start) else { continue };
            let steps = cycle.windows(2).map(|pair| {
                format!(
                    "{} uses {}",
                    graph[&pair[0]][&pair[1]].display(),
                    [&parent[..], &[pair[1].clone()]].concat().join("::")
                )
            });
            problems.push(format!("a cycle: {}", steps.collect::<Vec<_>>().join(", ")));
            done.extend(cycle);
        }
    }
    problems
}

/// The shortest path from one to another, with at least one use.
fn way(graph: &BTreeMap<String, BTreeMap<String, &Path>>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = std::collections::VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in graph.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
            let longer = [&way[..], std::slice::from_ref(next)].concat();
            if next == to {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let package = Package { name: "one".to_owned(), roots: vec!["src/lib.rs".into()], features: vec![] };
        let file = |(path, text): &(&str, &str)| TextFile { path: path.into(), text: (*text).to_owned() };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        check(&[package], &files, &[]).expect("parses")
    }

    #[test]
    fn two_files_that_use_each_other_are_named() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;"),
            ("src/a.rs", "use crate::b::B;\npub struct A;"),
            ("src/b.rs", "pub struct B;\nfn a() -> super::a::A { super::a::A }"),
        ];
        assert_eq!(cycles(&files), ["a cycle: src/a.rs uses b, src/b.rs uses a"]);
    }

    #[test]
    fn one_direction_is_none() {
        let files = [("src/lib.rs", "mod a;\nmod b;"), ("src/a.rs", "use crate::b::B;"), ("src/b.rs", "pub struct B;")];
        assert_eq!(cycles(&files), Vec::<String>::new());
    }

    #[test]
    fn a_parent_and_its_children_are_one_thing() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod c;\nuse self::c::C;\npub struct A;"),
            ("src/a/c.rs", "use super::A;\npub struct C(A);"),
        ];
        assert_eq!(cycles(&files), Vec::<String>::new());
    }

    #[test]
    fn a_cycle_behind_re_exports_is_found() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a/mod.rs", "mod c;\nmod d;\npub use self::{c::C, d::D as E};"),
            ("src/a/c.rs", "use super::E;\npub struct C;"),
            ("src/a/d.rs", "use crate::a::C;\npub struct D;"),
        ];
        assert_eq!(cycles(&files), ["a cycle: src/a/c.rs uses a::d, src/a/d.rs uses a::c"]);
    }

    #[test]
    fn a_cycle_of_folders_is_found_though_no_two_files_use_each_other() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;"),
            ("src/a/mod.rs", "mod c;\npub struct A;"),
            ("src/a/c.rs", "fn b() { format!(\"{}\", crate::b::f()); }"),
            ("src/b.rs", "pub fn f() -> crate::a::A { crate::a::A }"),
        ];
        assert_eq!(cycles(&files), ["a cycle: src/a/c.rs uses b, src/b.rs uses a"]);
    }

    #[test]
    fn three_make_one_cycle() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;\nmod c;"),
            ("src/a.rs", "use crate::b;"),
            ("src/b.rs", "use crate::c;"),
            ("src/c.rs", "use crate::a;"),
        ];
        assert_eq!(cycles(&files), ["a cycle: src/a.rs uses b, src/b.rs uses c, src/c.rs uses a"]);
    }

    #[test]
    fn tests_are_left_out() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;"),
            ("src/a.rs", "use crate::b::B;\npub struct A;"),
            ("src/b.rs", "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)]\nuse crate::a::A;"),
        ];
        assert_eq!(cycles(&files), Vec::<String>::new());
    }

    #[test]
    fn the_list_holds_back_cycles_and_only_where_there_are_some() {
        let package = Package { name: "one".to_owned(), roots: vec!["src/lib.rs".into()], features: vec![] };
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.to_owned() };
        let files = [
            file("src/lib.rs", "mod a;\nmod b;"),
            file("src/a.rs", "use crate::b;"),
            file("src/b.rs", "use crate::a;"),
        ];
        let check = |files: &[TextFile]| check(std::slice::from_ref(&package), files, &["one"]).expect("parses");
        assert_eq!(check(&files), Vec::<String>::new());
        assert_eq!(check(&[file("src/lib.rs", "")]), ["one has no cycles any more: take it off the list"]);
    }
}
