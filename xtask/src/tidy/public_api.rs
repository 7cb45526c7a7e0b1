//! The public interface of the library: what a signature of `quell` names can be named by its users, and
//! `quell-core` shows the modules that authors of stores and listeners need.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

const CORE: &str = "crates/quell-core/src/";
const LIBRARY: &str = "crates/quell/src/";
const STORES: &str = "crates/quell/src/store";

/// Crates that programs have beside the library.
const BESIDE: [&str; 2] = ["crates/quell-redis/src/", "crates/quell-rules/src/"];

/// The modules of `quell-core` that are in its documentation. One more has to earn it: who needs it, who
/// has `quell`?
const SHOWN: [&str; 28] = [
    "actual",
    "algorithm",
    "ban",
    "charge",
    "claim",
    "cost",
    "decision",
    "descriptor",
    "end_hold",
    "fleet_share",
    "hold",
    "key",
    "limit",
    "limit_error",
    "limit_spec",
    "on_failure",
    "over_admission",
    "path",
    "policy",
    "query_bounds",
    "rate",
    "rate_limit_fields",
    "refusal_page",
    "rule",
    "state",
    "time",
    "usage",
    "verdict",
];

/// Checks the core, the library and the crates beside it.
///
/// # Errors
///
/// When a file is not Rust.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let below = |folder: &str| -> Vec<&TextFile> {
        let files = repository.rust_files();
        let files = files.filter(|file| file.path.starts_with(folder) && !file.is_test_code());
        files.collect()
    };
    let (core, library) = (below(CORE), below(LIBRARY));
    let root = core.iter().find(|file| file.path.ends_with("/src/lib.rs"));
    let mut findings = shown(root.context("no library")?)?;
    findings.extend(unnamed(&core, &library, &BESIDE.map(below))?);
    Ok(findings)
}

/// Modules that are shown and not listed, or the other way round; and items beside modules.
fn shown(root: &TextFile) -> Result<Vec<Finding>> {
    let mut there = BTreeSet::new();
    for item in syn::parse_file(&root.text)?.items {
        let (visibility, attributes, name) = match item {
            Item::Mod(item) => (item.vis, item.attrs, item.ident.to_string()),
            Item::Use(item) => (item.vis, item.attrs, "use".to_owned()),
            _ => continue,
        };
        if is_public(&visibility) && !is_hidden(&attributes) {
            there.insert(name);
        }
    }
    let listed = SHOWN.map(str::to_owned).into();
    let differ = there.symmetric_difference(&listed);
    let differ = differ.map(|name| {
        let message =
            format!("`{name}` is shown or listed, and not both: hide it, or list it in tidy");
        Finding::in_file(&root.path, message)
    });
    Ok(differ.collect())
}

/// Types of the core in signatures that programs see, and that neither the library nor the crate with the
/// signature exports. The library's module of stores is for authors, who have the core.
fn unnamed(
    core: &[&TextFile],
    library: &[&TextFile],
    beside: &[Vec<&TextFile>],
) -> Result<Vec<Finding>> {
    let mut defined = BTreeSet::new();
    for file in core {
        defined.extend(public_types(file)?);
    }
    let (mut exported, mut shown, mut own) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for file in library {
        let names = exports(file)?;
        if !file.path.starts_with(STORES) {
            shown.extend(names.iter().cloned());
            own.extend(public_types(file)?);
        }
        exported.extend(names);
    }
    exported.extend(own.iter().cloned());
    let mut findings = BTreeSet::new();
    let mut look = |files: &[&TextFile],
                    visible: &BTreeSet<String>,
                    exported: &BTreeSet<String>|
     -> Result<()> {
        for file in files {
            let mut signatures = Signatures {
                visible,
                named: Vec::new(),
            };
            signatures.visit_file(&syn::parse_file(&file.text)?);
            for (name, line) in signatures.named {
                if defined.contains(&name) && !exported.contains(&name) {
                    let message = format!("users of `quell` see `{name}`: export it, or hide this");
                    findings.insert(Finding::at_line(&file.path, line, message));
                }
            }
        }
        Ok(())
    };
    look(core, &shown, &exported)?;
    look(library, &own, &exported)?;
    for files in beside {
        let (mut own, mut exported) = (BTreeSet::new(), exported.clone());
        for file in files {
            own.extend(public_types(file)?);
            exported.extend(exports(file)?);
        }
        exported.extend(own.iter().cloned());
        look(files, &own, &exported)?;
    }
    Ok(findings.into_iter().collect())
}

/// The public types of a file.
fn public_types(file: &TextFile) -> Result<Vec<String>> {
    let items = syn::parse_file(&file.text)?.items.into_iter();
    let types = items.filter_map(|item| match item {
        Item::Struct(item) => is_public(&item.vis).then_some(item.ident),
        Item::Enum(item) => is_public(&item.vis).then_some(item.ident),
        Item::Trait(item) => is_public(&item.vis).then_some(item.ident),
        Item::Type(item) => is_public(&item.vis).then_some(item.ident),
        _ => None,
    });
    Ok(types.map(|name| name.to_string()).collect())
}

/// What a file exports of the core.
fn exports(file: &TextFile) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for item in syn::parse_file(&file.text)?.items {
        if let Item::Use(item) = item
            && is_public(&item.vis)
            && let UseTree::Path(path) = item.tree
            && path.ident == "quell_core"
        {
            leaves(&path.tree, &mut names);
        }
    }
    Ok(names)
}

fn leaves(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, names)),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(_) | UseTree::Glob(_) => {}
    }
}

/// The names in public signatures and fields of visible types, with their lines.
struct Signatures<'a> {
    visible: &'a BTreeSet<String>,
    named: Vec<(String, usize)>,
}

impl Signatures<'_> {
    fn sees(&self, name: &syn::Ident) -> bool {
        self.visible.contains(&name.to_string())
    }
}

impl<'ast> Visit<'ast> for Signatures<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let Type::Path(of) = &*item.self_ty else {
            return;
        };
        let name = of.path.segments.last().map(|segment| &segment.ident);
        if item.trait_.is_some() || is_hidden(&item.attrs) || !name.is_some_and(|of| self.sees(of))
        {
            return;
        }
        for member in &item.items {
            if let ImplItem::Fn(member) = member
                && is_public(&member.vis)
                && !is_hidden(&member.attrs)
            {
                self.visit_signature(&member.sig);
            }
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if !self.sees(&item.ident) || is_hidden(&item.attrs) {
            return;
        }
        for member in &item.items {
            if let TraitItem::Fn(member) = member
                && !is_hidden(&member.attrs)
            {
                self.visit_signature(&member.sig);
            }
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.iter().filter(|field| is_public(&field.vis));
        if self.sees(&item.ident) {
            fields.for_each(|field| self.visit_type(&field.ty));
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if self.sees(&item.ident) {
            visit::visit_item_enum(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(last) = path.segments.last() {
            let line = last.ident.span().start().line;
            self.named.push((last.ident.to_string(), line));
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {}

    fn visit_item_fn(&mut self, _: &'ast syn::ItemFn) {}

    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_item_type(&mut self, _: &'ast syn::ItemType) {}

    fn visit_item_macro(&mut self, _: &'ast syn::ItemMacro) {}
}

const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether it is marked `#[doc(hidden)]`.
fn is_hidden(attributes: &[Attribute]) -> bool {
    let is_hidden = |attribute: &Attribute| {
        attribute.path().is_ident("doc")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|word| word == "hidden")
    };
    attributes.iter().any(is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn a_module_that_is_shown_and_not_listed_is_found() {
        let listed = SHOWN.map(|name| format!("pub mod {name};\n")).concat();
        let found = |more: &str| {
            let text = format!("{listed}{more}");
            shown(&TextFile::sample("lib.rs", &text)).unwrap()
        };
        assert_none(&found("mod share;\n#[doc(hidden)]\npub mod packed;\n"));
        assert_one(&found("pub mod packed;\n"), "`packed`");
        assert_one(&found("pub use cost::Cost;\n"), "`use`");
    }

    #[test]
    fn a_type_that_cannot_be_named_is_found() {
        let found = |member: &str, exported: &str| {
            let core = format!("pub struct Query;\npub struct Entry;\nimpl Query {{ {member} }}\n");
            let core = TextFile::sample("crates/quell-core/src/descriptor.rs", &core);
            let library = format!("pub use quell_core::descriptor::{{{exported}}};\n");
            let library = TextFile::sample("crates/quell/src/lib.rs", &library);
            unnamed(&[&core], &[&library], &[]).unwrap()
        };
        let entries = "pub fn entries(&self) -> &[Entry] { &[] }";
        assert_one(&found(entries, "Query"), "`Entry`");
        assert_none(&found(entries, "Query, Entry"));
        assert_none(&found(&format!("#[doc(hidden)] {entries}"), "Query"));
        assert_none(&found(&entries.replace("pub ", ""), "Query"));
        assert_none(&found(entries, "Other"));
        let core = TextFile::sample("crates/quell-core/src/rule.rs", "pub struct Rule;\n");
        let found = |exports: &str| {
            let text = format!("{exports}pub struct Rules {{ pub first: Rule }}\n");
            let beside = TextFile::sample("crates/quell-rules/src/lib.rs", &text);
            unnamed(&[&core], &[], &[vec![&beside]]).unwrap()
        };
        assert_one(&found(""), "`Rule`");
        assert_none(&found("pub use quell_core::rule::Rule;\n"));
    }
}
