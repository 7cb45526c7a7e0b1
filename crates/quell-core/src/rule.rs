//! Rule: which queries a limit applies to, and which of them share a key.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU32;
use core::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::address::{self, is_local_nat64};
use crate::cost::Cost;
use crate::hold::DEFAULT_MAX_HOLD;
use crate::key::{Capture, Captured, KeyBytes, push_value, rule_scope};
use crate::limit::Limit;
use crate::limit_error::LimitError;
use crate::limit_spec::LimitSpec;
use crate::policy::Policy;
use crate::refusal_page::RefusalPage;

mod index;
mod matcher;
mod numbers;
mod pattern;
mod plans;
mod reserve;
mod selector;
mod set;
mod shared;

pub use matcher::{Matcher, Patterns};
pub use numbers::{Numbers, StoredChoice, StoredEffect, StoredNumbers, StoredOverrides};
pub use pattern::{DescriptorReader, Pattern};
pub use plans::{NamedPlan, Plans};
pub use reserve::Reserve;
pub use selector::{Select, Selector};
pub use set::{
    ActiveRule, CalendarEdges, Changes, DomainRules, DroppedLimit, LimitIds, REMEMBERED,
    ReplacedLimit, RuleSet,
};
pub use shared::{SameName, SharedLimit, all_shared_limits};

/// A matcher, a name, a limit and flags: one entry of a rules file.
///
/// ```
/// use quell_core::limit::Limit;
/// use quell_core::rule::{Per, Rule};
///
/// // Five logins a minute from each address.
/// let rule = Rule::new("login-per-ip", Limit::per_minute(5))?
///     .matching("method", &["POST"])
///     .matching("path", &["/login"])
///     .per(Per::address("remote_address"));
/// # Ok::<(), quell_core::limit_error::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique within its domain.
    pub name: Arc<str>,
    /// Conditions on a descriptor. All matchers must hold; without matchers the rule applies to every
    /// descriptor.
    pub matchers: Vec<Matcher>,
    /// The entries whose values make a key.
    pub per: Vec<Per>,
    /// Treatment of a descriptor that lacks an entry of `per`.
    pub on_missing: OnMissing,
    /// Treatment of an entry with an empty value.
    pub empty: EmptyValue,
    /// The limit, unless a plan or an override applies.
    pub effect: Effect,
    /// Other numbers for some descriptors; the first override that matches applies.
    pub overrides: Vec<Override>,
    /// Other numbers by a plan, before `overrides`; `None` if the domain has no plans.
    pub plans: Option<Arc<Plans>>,
    /// Charges this many units, whatever the descriptor's cost is. Without it, `concurrency` takes one permit
    /// a call ([`Rule::own_cost`]).
    pub cost: Option<Cost>,
    /// Evaluated and reported, but cannot refuse.
    pub shadow: bool,
    /// Rung that decides the rule, and the answer while that is impossible.
    pub policy: Policy,
    /// Greatest number of servers that share its limits, as far as the rules say so. It changes no
    /// decision: explanations advise with it.
    pub nodes: Option<NonZeroU32>,
    /// With the rung `shares`: the group of nodes that share its limits, 1 to 200 bytes; without one all
    /// nodes of the fleet do.
    pub group: Option<Arc<str>>,
    /// The longest that a reservation may last, at most [`MAX_HOLD`](crate::hold::MAX_HOLD).
    pub max_hold: Duration,
    /// The entries by which Envoy's calls reserve an estimate and settle it. All limits of such a rule are fixed
    /// windows, and its rung is strict.
    pub reserve: Option<Arc<Reserve>>,
    /// The status and body of a refusal to an end user, in place of the usual ones.
    pub refusal_page: Option<Arc<RefusalPage>>,
}

/// Effect of a rule on the queries it matches.
///
/// The effects of one rule are numbers for the same keys: a key's use is kept when another of them applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Limits the queries.
    Limit(Limit),
    /// Adds no decision.
    Unlimited,
    /// Refuses them for good. Nothing is charged, and what was used stays as it is.
    Refuse,
}

impl Effect {
    /// The limit, if it is one.
    #[must_use]
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Unlimited | Self::Refuse => None,
        }
    }
}

/// Another effect for some of the queries that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Conditions on a descriptor.
    pub when: When,
    /// The effect that applies then.
    pub effect: Effect,
}

/// In place of the bytes of a `when`, which begin with the length of a name, and so with a 0.
const PLAN: &[u8] = b"plan ";
const REFUSED: &[u8] = b"refused";

/// The matchers of an override. Most have one, and there may be hundreds of thousands of them.
pub type When = SmallVec<[Matcher; 1]>;

impl Override {
    /// Bytes that differ from those of every other `when`.
    fn when_bytes(&self) -> KeyBytes {
        let mut when = KeyBytes::new();
        for matcher in &self.when {
            matcher.write(&mut when);
        }
        when
    }

    /// The value, if `when` asks for one value of one entry, as most do.
    fn only_value(&self) -> Option<&SmolStr> {
        match &*self.when {
            [matcher] => match &*matcher.patterns {
                [Pattern::Exact(text)] => Some(text),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns true if the values that `per` captures decide whether this override applies, so that a key is
    /// always under the same numbers.
    fn is_told_by(&self, per: &[Per]) -> bool {
        self.when
            .iter()
            .all(|matcher| per.iter().any(|per| per.tells(matcher)))
    }
}

/// An entry whose value is part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Per {
    /// The entry's name.
    pub entry: Arc<str>,
    /// For addresses, how many leading bits count. A value that is not an address counts as a whole.
    pub prefix: Option<Prefix>,
    /// True if a store of many servers keeps all keys with the same value on one server, so that limits on
    /// them can be charged in one step. At most one entry of a rule; all rules that say so capture the
    /// entry in the same way.
    pub colocate: bool,
}

impl Per {
    /// The whole value of an entry.
    #[must_use]
    pub fn value(entry: &str) -> Self {
        Self {
            entry: Arc::from(entry),
            prefix: None,
            colocate: false,
        }
    }

    /// The address of a client: the whole of an IPv4 address, 64 bits of an IPv6 address
    /// ([`Prefix::DEFAULT`]).
    #[must_use]
    pub fn address(entry: &str) -> Self {
        Self {
            prefix: Some(Prefix::DEFAULT),
            ..Self::value(entry)
        }
    }

    /// A value as the key has it: of an address, the first one of those that count as one.
    #[must_use]
    pub fn counted(&self, value: &str) -> Option<IpAddr> {
        let prefix = self.prefix?;
        Some(prefix.cut(address::parse(value.as_bytes())?))
    }

    /// Returns true if the captured value decides whether `matcher` holds.
    fn tells(&self, matcher: &Matcher) -> bool {
        let Some(prefix) = self.prefix else {
            return self.entry == matcher.entry;
        };
        let is_coarser = |pattern: &Pattern| match pattern {
            Pattern::Network(network) if network.addr().is_ipv4() => {
                network.prefix_len() <= prefix.v4
            }
            Pattern::Network(network) => network.prefix_len() <= prefix.v6,
            Pattern::Exact(_) | Pattern::Glob(_) => false,
        };
        self.entry == matcher.entry && matcher.patterns.iter().all(is_coarser)
    }
}

impl From<&str> for Per {
    /// [`Per::value`].
    fn from(entry: &str) -> Self {
        Self::value(entry)
    }
}

/// Number of leading bits of an address that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    v4: u8,
    v6: u8,
}

impl Prefix {
    /// The default for addresses of callers: each IPv4 address is one caller, and each IPv6 /64 is one
    /// caller, since a household or a server has at least a whole /64 and can use any address in it.
    pub const DEFAULT: Self = Self { v4: 32, v6: 64 };

    /// The first `v4` bits of an IPv4 address and the first `v6` of an IPv6 address; `None` above
    /// 32 or 128.
    #[must_use]
    pub const fn new(v4: u8, v6: u8) -> Option<Self> {
        if v4 <= 32 && v6 <= 128 {
            Some(Self { v4, v6 })
        } else {
            None
        }
    }

    /// Leading bits of an IPv4 address.
    #[must_use]
    pub const fn v4(self) -> u8 {
        self.v4
    }

    /// Leading bits of an IPv6 address.
    #[must_use]
    pub const fn v6(self) -> u8 {
        self.v6
    }

    fn cut(self, address: IpAddr) -> IpAddr {
        let address = address::canonical(address);
        let length = match address {
            IpAddr::V4(_) => self.v4,
            // Each of them is one client of IPv4.
            IpAddr::V6(address) if is_local_nat64(address) => 128,
            IpAddr::V6(_) => self.v6,
        };
        ipnet::IpNet::new(address, length).map_or(address, |net| net.network())
    }
}

/// Treatment of a descriptor that lacks an entry of the rule's `per`, or has it empty ([`EmptyValue`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// The rule does not apply.
    #[default]
    Skip,
    /// All such descriptors share one key.
    SharedKey,
}

/// Treatment of an entry with an empty value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyValue {
    /// For a missing one: gateways and clients send an empty value where they have none.
    #[default]
    Missing,
    /// For a value like any other.
    Keep,
}

/// Reason why a rule does not apply to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'r> {
    /// The descriptor lacks an entry that `match` names.
    Lacks(&'r Matcher),
    /// The entry's value matches none of the patterns.
    Differs(&'r Matcher),
    /// The descriptor lacks an entry of `per`.
    LacksKey(&'r str),
}

impl Rule {
    /// A rule that limits every query under one key, until it is told what to match and what its keys
    /// are.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn new(name: &str, limit: impl Into<LimitSpec>) -> Result<Self, LimitError> {
        Ok(Self {
            name: Arc::from(name),
            matchers: Vec::new(),
            per: Vec::new(),
            on_missing: OnMissing::default(),
            empty: EmptyValue::default(),
            effect: Effect::Limit(limit.into().build()?),
            overrides: Vec::new(),
            plans: None,
            cost: None,
            shadow: false,
            policy: Policy::STRICT,
            nodes: None,
            group: None,
            max_hold: DEFAULT_MAX_HOLD,
            reserve: None,
            refusal_page: None,
        })
    }

    /// Adds an entry that a query must have, and the values it may have, read as in a rules file
    /// ([`Pattern::parse`]). All such entries must match.
    #[must_use]
    pub fn matching(mut self, entry: &str, patterns: &[&str]) -> Self {
        let patterns = patterns.iter().copied().map(Pattern::parse);
        self.matchers.push(Matcher {
            entry: Arc::from(entry),
            patterns: patterns.collect(),
        });
        self
    }

    /// Adds an entry whose value is part of the key: its name, or a [`Per::address`].
    #[must_use]
    pub fn per(mut self, per: impl Into<Per>) -> Self {
        self.per.push(per.into());
        self
    }

    /// Sets where the rule is decided, and the answer while that is impossible: a [`Policy`], or one of
    /// its two parts.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = policy.into();
        self
    }

    /// Sets the status and body of a refusal to an end user.
    #[must_use]
    pub fn refusal_page(mut self, page: RefusalPage) -> Self {
        self.refusal_page = Some(Arc::new(page));
        self
    }

    /// The effects of the rule itself, its plans and its overrides.
    pub fn effects(&self) -> impl Iterator<Item = &Effect> {
        let plans = self.plans.iter().flat_map(|plans| plans.effects.values());
        let overrides = self.overrides.iter().map(|entry| &entry.effect);
        overrides.chain(plans).chain([&self.effect])
    }

    /// Returns true if its keys may have windows of the calendar: its limits have one `align`, so the first one tells, and
    /// a rule without a limit has any.
    #[must_use]
    pub fn may_have_calendar(&self) -> bool {
        let own = self.effect.limit();
        let first = own.or_else(|| self.effects().find_map(Effect::limit));
        first.is_none_or(|limit| limit.calendar().is_some())
    }

    /// Checks whether the rule applies to a descriptor.
    ///
    /// # Errors
    /// The first reason why it does not.
    pub fn applies(&self, reader: &DescriptorReader<'_>) -> Result<(), Mismatch<'_>> {
        self.check_all(&self.matchers, reader)?;
        if self.on_missing == OnMissing::Skip {
            let mut per = self.per.iter();
            let lacking = per.find(|per| reader.get(&per.entry, self.empty).is_none());
            if let Some(per) = lacking {
                return Err(Mismatch::LacksKey(&per.entry));
            }
        }
        Ok(())
    }

    /// The index of the first override whose `when` holds. Cost: linear in their number; rules in force
    /// have an index.
    #[must_use]
    pub fn override_for(&self, reader: &DescriptorReader<'_>) -> Option<usize> {
        index::first_match(self, reader)
    }

    /// Cost of each call under `limit`, if it is not what the call says: as many as the rule says, and
    /// under `concurrency` else one permit, since what a call costs does not say how many are under way.
    #[must_use]
    pub fn own_cost(&self, limit: &Limit) -> Option<Cost> {
        self.cost
            .or_else(|| limit.lease().is_some().then_some(Cost::ONE))
    }

    /// The scope that the keys of this rule share.
    #[must_use]
    #[doc(hidden)]
    pub fn scope(&self, domain: &str) -> KeyBytes {
        self.scope_when(domain, None)
    }

    /// Identifies where the limit of an override applies.
    fn place_of(&self, domain: &str, entry: &Override) -> KeyBytes {
        self.scope_when(domain, Some(&entry.when_bytes()))
    }

    /// Identifies where the limit of a plan applies.
    fn place_of_plan(&self, domain: &str, plan: &str) -> KeyBytes {
        let mut bytes = KeyBytes::from_slice(PLAN);
        bytes.extend_from_slice(plan.as_bytes());
        self.scope_when(domain, Some(&bytes))
    }

    /// The scope of keys under which calls are refused.
    fn refused_scope(&self, domain: &str) -> KeyBytes {
        self.scope_when(domain, Some(REFUSED))
    }

    fn scope_when(&self, domain: &str, when: Option<&[u8]>) -> KeyBytes {
        let per = self.per.iter().map(|per| {
            let prefix = per.prefix.map(|prefix| (prefix.v4, prefix.v6));
            Capture {
                entry: &per.entry,
                prefix,
                is_together: per.colocate,
            }
        });
        rule_scope(domain, &self.name, when, per)
    }

    /// Appends the values that the rule captures from a descriptor. Returns whether the descriptor has
    /// them all.
    #[doc(hidden)]
    pub fn capture(&self, reader: &DescriptorReader<'_>, bytes: &mut KeyBytes) -> bool {
        let mut has_all = true;
        for per in &self.per {
            let value = reader.get(&per.entry, self.empty);
            has_all &= value.is_some();
            push_value(bytes, captured(value, per.prefix, reader));
        }
        has_all
    }

    /// Checks whether all of the rule's `matchers` hold.
    fn check_all<'r>(
        &self,
        matchers: &'r [Matcher],
        reader: &DescriptorReader<'_>,
    ) -> Result<(), Mismatch<'r>> {
        for matcher in matchers {
            match reader.get(&matcher.entry, self.empty) {
                None => return Err(Mismatch::Lacks(matcher)),
                Some(value) if !matcher.matches(value, reader) => {
                    return Err(Mismatch::Differs(matcher));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The captured part of an entry's value.
fn captured<'v>(
    value: Option<&'v [u8]>,
    prefix: Option<Prefix>,
    reader: &DescriptorReader<'v>,
) -> Captured<'v> {
    let Some(value) = value else {
        return Captured::Missing;
    };
    let cut = prefix.and_then(|prefix| Some(prefix.cut(reader.address(value)?)));
    cut.map_or(Captured::Bytes(value), Captured::Address)
}
