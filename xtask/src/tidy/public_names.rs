//! The names that a source file makes visible to other crates.

use anyhow::Result;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Visibility};

use crate::repository::TextFile;

/// One public name and where it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicName {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) identifier: String,
}

/// Every `pub` name of a file, except in items that only tests compile.
///
/// # Errors
///
/// When the file is not Rust.
pub(crate) fn public_names(file: &TextFile) -> Result<Vec<PublicName>> {
    let syntax = syn::parse_file(&file.text)?;
    let mut collector = Collector {
        file,
        names: Vec::new(),
    };
    collector.visit_file(&syntax);
    Ok(collector.names)
}

struct Collector<'a> {
    file: &'a TextFile,
    names: Vec<PublicName>,
}

impl Collector<'_> {
    fn add(&mut self, identifier: &Ident) {
        self.names.push(PublicName {
            path: self.file.path.clone(),
            line: identifier.span().start().line,
            identifier: identifier.to_string(),
        });
    }

    fn add_if_public(&mut self, visibility: &Visibility, identifier: &Ident) {
        if matches!(visibility, Visibility::Public(_)) {
            self.add(identifier);
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item;
        let (attributes, declared) = match item {
            Item::Const(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Enum(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Fn(i) => (&i.attrs, Some((&i.vis, &i.sig.ident))),
            Item::Mod(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Static(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Struct(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Trait(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Type(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Union(i) => (&i.attrs, Some((&i.vis, &i.ident))),
            Item::Impl(i) => (&i.attrs, None),
            Item::Use(i) => (&i.attrs, None),
            Item::Macro(i) => {
                let exported = i.attrs.iter().any(|a| a.path().is_ident("macro_export"));
                if let (true, Some(name)) = (exported, &i.ident) {
                    self.add(name);
                }
                return;
            }
            _ => return,
        };
        if only_for_tests(attributes) {
            return;
        }
        if let Some((visibility, name)) = declared {
            self.add_if_public(visibility, name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if !matches!(item.vis, Visibility::Public(_)) {
            return;
        }
        for variant in &item.variants {
            self.add(&variant.ident);
            for name in variant
                .fields
                .iter()
                .filter_map(|field| field.ident.as_ref())
            {
                self.add(name);
            }
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if !matches!(item.vis, Visibility::Public(_)) {
            return;
        }
        for member in &item.items {
            match member {
                syn::TraitItem::Const(i) => self.add(&i.ident),
                syn::TraitItem::Fn(i) => self.add(&i.sig.ident),
                syn::TraitItem::Type(i) => self.add(&i.ident),
                _ => {}
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, Visibility::Public(_)) {
            visit::visit_item_use(self, item);
        }
    }

    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        self.add(&rename.rename);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.add_if_public(&field.vis, name);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        match item {
            syn::ImplItem::Const(i) => self.add_if_public(&i.vis, &i.ident),
            syn::ImplItem::Fn(i) if !only_for_tests(&i.attrs) => {
                self.add_if_public(&i.vis, &i.sig.ident);
            }
            syn::ImplItem::Type(i) => self.add_if_public(&i.vis, &i.ident),
            _ => {}
        }
    }

    /// Items inside a function's body are not visible outside.
    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

fn only_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let file = TextFile::sample("crates/quell/src/sample.rs", text);
        let names = public_names(&file).unwrap();
        names.into_iter().map(|name| name.identifier).collect()
    }

    #[test]
    fn every_kind_of_public_name_is_seen() {
        let text = "
            pub const ONE: u8 = 1;
            pub fn two() { pub fn inside() {} }
            pub struct Three { pub four: u8, private: u8 }
            pub enum Five { Six, Seven { eight: u8 } }
            pub trait Nine { const TEN: u8; type Eleven; fn twelve(); }
            pub mod thirteen { pub type Fourteen = u8; }
            impl Three { pub fn fifteen() {} fn private() {} }
            pub use other::Thing as Sixteen;
            #[macro_export] macro_rules! seventeen { () => {} }
        ";
        let expected = [
            "ONE",
            "two",
            "Three",
            "four",
            "Five",
            "Six",
            "Seven",
            "eight",
            "Nine",
            "TEN",
            "Eleven",
            "twelve",
            "thirteen",
            "Fourteen",
            "fifteen",
            "Sixteen",
            "seventeen",
        ];
        assert_eq!(names(text), expected);
    }

    #[test]
    fn what_others_cannot_see_is_left_out() {
        let text = "
            fn a() {}
            pub(crate) struct B { c: u8 }
            enum D { E }
            trait F { fn g(); }
            use other::Thing as H;
            macro_rules! i { () => {} }
            #[cfg(test)] pub fn j() {}
            #[cfg(test)] mod tests { pub fn k() {} }
            impl Display for B { fn fmt() {} }
        ";
        assert_eq!(names(text), Vec::<String>::new());
    }

    #[test]
    fn the_place_is_the_name_s_own_line() {
        let file = TextFile::sample(
            "crates/quell-core/src/a.rs",
            "//! A.\n\n/// B.\npub fn b() {}",
        );
        let names = public_names(&file).unwrap();
        assert_eq!(
            (names[0].line, names[0].path.as_str()),
            (4, "crates/quell-core/src/a.rs")
        );
    }
}
