//! Rules: the rules that a scenario file tests, as paths or as a document in place.

use std::path::{Path, PathBuf};

use quell_core::rule::DomainRules;

use crate::cursor::{Cursor, Shape};
use crate::problem::Sink;
use crate::{hint, load};

/// Target of a path of rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleTarget<'a> {
    /// To what is beside the file, in this directory.
    Directory(&'a Path),
    /// Always to these rules: no file is read.
    Rules(&'a [DomainRules]),
}

/// Reads `rules` or `set_rules`: paths, or a document in place.
pub(super) fn read_rules(
    cursor: &Cursor<'_>,
    place: RuleTarget<'_>,
    sink: &mut Sink,
) -> Vec<DomainRules> {
    let directory = match (cursor.shape(), place) {
        (None, _) => return Vec::new(),
        (Some(Shape::Map(_)), _) => return load::in_place(cursor, sink),
        (_, RuleTarget::Rules(rules)) => return rules.to_vec(),
        (_, RuleTarget::Directory(directory)) => directory,
    };
    let paths = match cursor.shape() {
        Some(Shape::Text(_)) => vec![cursor.clone()],
        _ => cursor.items("a path such as `shop.yaml`", sink),
    };
    let paths = paths.iter();
    let paths = paths.filter_map(|path| beside(path, directory, sink));
    let paths: Vec<PathBuf> = paths.collect();
    sink.aside(|sink| load::load_into(&paths, sink)).0
}

/// A path relative to `directory`, which must exist.
fn beside(cursor: &Cursor<'_>, directory: &Path, sink: &mut Sink) -> Option<PathBuf> {
    let name = cursor.text(sink)?;
    let path = directory.join(&**name);
    if path.exists() {
        return Some(path);
    }
    let name = hint::shorten(name);
    let message =
        format!("there is no `{name}` beside this file: write a path that leads to rules");
    cursor.problem(message, sink);
    None
}
