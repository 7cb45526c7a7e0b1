//! Policy, as written: a rung, the answer on failure, and the number of nodes.

use std::num::NonZeroU32;

use quell_core::policy::Rung;

use crate::cursor::Fields;
use crate::hint;
use crate::path::Spanned;
use crate::period::whole;
use crate::problem::Sink;

/// The most nodes that a limit is divided by: no store is shared by more servers.
const MAX_NODES: u32 = 100_000;

/// The fields that say where a rule is decided, and what happens on failure.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawPolicy {
    pub(crate) rung: Option<Spanned<Rung>>,
    pub(crate) on_failure: Option<Spanned<&'static str>>,
    pub(crate) nodes: Option<Spanned<NonZeroU32>>,
}

impl RawPolicy {
    pub(super) fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        Self {
            rung: fields.read("rung", sink, rung),
            on_failure: fields.read("on_failure", sink, word),
            nodes: fields.read("nodes", sink, nodes),
        }
    }
}

fn rung(text: &str) -> Result<Rung, String> {
    match text {
        "strict" => Ok(Rung::Strict),
        "local" => Ok(Rung::Local),
        "leased" | "synced" | "shares" => Err(format!(
            "`{text}` is not available yet: write strict or local"
        )),
        _ => Err(hint::no_such("value", text, &["strict", "local"])),
    }
}

fn word(text: &str) -> Result<&'static str, String> {
    if text == "floor" {
        return Err("`floor` is not available yet: write share, deny or allow".to_owned());
    }
    hint::one_of(
        "value",
        text,
        &["share", "deny", "allow"].map(|word| (word, word)),
    )
}

fn nodes(text: &str) -> Result<NonZeroU32, String> {
    let number = whole(text)?;
    let nodes = u32::try_from(number)
        .ok()
        .filter(|nodes| *nodes <= MAX_NODES);
    nodes.and_then(NonZeroU32::new).ok_or_else(|| {
        format!("{number} nodes: write how many servers share the limits, 1 to {MAX_NODES}")
    })
}
