//! Numbers: what applies to a key of a rule now. A rule has its own, and others for its plans and overrides;
//! stored overrides choose for single keys. The key is the same under all of them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::charge::KeyHash;
use crate::cost::Cost;
use crate::limit::ActiveLimit;
use crate::over_admission::LeaseTerms;
use crate::policy::Rung;
use crate::rule::Effect;
use crate::time::Wall;

/// Numbers in force that apply to some keys of a rule.
///
/// There may be hundreds of thousands, so what few have is in a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The limit; `None` if there is none.
    pub(super) active: Option<ActiveLimit>,
    special: Option<Box<Special>>,
}

/// Settings that few numbers have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Special {
    /// The limit is leased or synced.
    Terms(LeaseTerms),
    /// Every call is refused. The limit then only has the form of one.
    Refuses,
}

impl Numbers {
    /// The numbers of a limit on a rung, for calls of this cost.
    pub(super) fn new(active: Option<ActiveLimit>, rung: Rung, cost: Option<Cost>) -> Self {
        let terms = active
            .as_ref()
            .and_then(|active| rung.terms(&active.limit, cost));
        let special = terms.and_then(Result::ok).map(Special::Terms);
        Self {
            special: special.map(Box::new),
            active,
        }
    }

    /// The numbers under which every call is refused, in the form of a limit.
    pub(super) fn refusing(form: Option<ActiveLimit>) -> Self {
        Self {
            active: form,
            special: Some(Box::new(Special::Refuses)),
        }
    }

    /// The limit; `None` if there is none.
    #[must_use]
    pub const fn active(&self) -> Option<&ActiveLimit> {
        self.active.as_ref()
    }

    /// Terms of the lease or the sync of the limit, if it has any.
    pub(super) fn terms(&self) -> Option<&LeaseTerms> {
        match self.special.as_deref()? {
            Special::Terms(terms) => Some(terms),
            Special::Refuses => None,
        }
    }

    /// Returns true if every call is refused.
    #[must_use]
    pub fn refuses(&self) -> bool {
        matches!(self.special.as_deref(), Some(Special::Refuses))
    }
}

/// The numbers that are stored for single keys.
pub trait StoredOverrides: fmt::Debug + Send + Sync {
    /// What is stored for the key with these bytes and in force at an instant of the wall clock; `None` if its rule
    /// decides. Also the key's hash.
    fn find(&self, key: &[u8], wall: Wall) -> (Option<StoredChoice<'_>>, KeyHash);

    /// The same numbers as [`find`](Self::find), but those that go on after the first of several of one override.
    fn find_lasting(&self, key: &[u8], wall: Wall) -> Option<StoredChoice<'_>>;

    /// The instants at which numbers that are stored for the key with these bytes begin or cease to apply.
    fn instants(&self, key: &[u8]) -> Vec<Wall>;
}

/// Choice of numbers for a single key.
#[derive(Clone, Copy, Debug)]
pub enum StoredChoice<'a> {
    /// These numbers.
    Numbers(&'a Numbers),
    /// Those of the rule, whatever plan the call names: the key is on a plan that leaves the rule as it is.
    WithoutPlan,
}

/// Meaning of the numbers that are stored for a key of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredEffect {
    /// These numbers.
    Effect(Effect),
    /// Those of a plan; the rule's own if the plan leaves it as it is.
    Plan(Arc<str>),
}

/// Numbers of a rule that come, change or go while the rule stays.
#[derive(Clone, Copy, Debug)]
pub struct StoredNumbers<'a> {
    /// The domain and the name of the rule.
    pub rule: (&'a str, &'a str),
    /// The effect from now on; `None` if no key has these numbers any more.
    pub effect: Option<&'a Effect>,
    /// The numbers until now.
    pub before: Option<&'a Numbers>,
}
