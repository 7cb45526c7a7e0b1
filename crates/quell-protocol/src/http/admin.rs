//! Bodies of administration: `/v1/bans`, `/v1/keys`, `/v1/holds`, `/v1/top`, `/v1/candidate` and health, for the
//! server that writes them and the clients that read them.
//!
//! Unknown members, which a later version may add, are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// State of a server, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(inline))]
pub enum HealthStatus {
    /// Nothing wants a person.
    Ok,
    /// It answers, but something wants a person.
    Degraded,
    /// It is on its way down.
    Stopping,
}

impl HealthStatus {
    /// The word in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Stopping => "stopping",
        }
    }
}

/// Health without details, for those who may not read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusBody {
    /// State of the server.
    pub status: HealthStatus,
}

/// Something that went wrong and stays so until it goes right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Failure {
    /// The first failure since it went right (RFC 3339).
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub since: Box<str>,
    /// Faults of the last time.
    pub reasons: Vec<String>,
}

/// Number of keys that a request changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ChangedBody {
    /// To how many keys it made a difference.
    pub changed: usize,
}

/// A page of the bans that stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BansBody {
    /// The bans.
    pub bans: Vec<BanBody>,
    /// Number of all bans, listed or not; null if those of some domains were asked for.
    pub total: Option<usize>,
    /// Beginning of the next page: the value of `after` there. Null if this is the last one. A page may have fewer
    /// bans than `most` before the last one.
    pub next: Option<String>,
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BanBody {
    /// The domain of its key.
    pub domain: String,
    /// The rule of its key.
    pub rule: String,
    /// The values of its key; null where the entry was missing.
    pub entries: BTreeMap<String, Option<String>>,
    /// Milliseconds until it is over.
    pub left_ms: u64,
    /// Reason, if an operator banned it and gave one.
    pub reason: Option<Box<str>>,
    /// Cause, if its rule banned it: which refusal began the ban, and which ban of how many it is.
    pub cause: Option<Box<str>>,
}

impl BanBody {
    /// Reason why it stands, by whoever began it.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.reason.as_deref().or(self.cause.as_deref())
    }
}

/// Holds on the keys that were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HoldsBody {
    /// The keys.
    pub keys: Vec<HeldKeyBody>,
}

/// Holds of one key that are listed.
pub const MAX_LISTED_HOLDS: usize = 100;

/// Holds on one key, in order of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeldKeyBody {
    /// Its domain.
    pub domain: String,
    /// Its rule.
    pub rule: String,
    /// Its values; null where the entry was missing.
    pub entries: BTreeMap<String, Option<String>>,
    /// The holds; what ends first is first.
    #[cfg_attr(feature = "openapi", schemars(length(max = MAX_LISTED_HOLDS)))]
    pub holds: Vec<HoldBody>,
    /// Holds that are not listed; they end later.
    pub more: usize,
}

/// Permits, a reservation, or a caller that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HoldBody {
    /// By which the hold is ended. Null without the role admin.
    pub id: Option<String>,
    /// Units that are or will be charged.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub units: u64,
    /// State: it is there, or waits for its turn.
    pub state: HoldState,
    /// Milliseconds until its time is over, unless it is ended or renewed. Null if it waits.
    pub ends_in_ms: Option<u64>,
    /// Milliseconds until its turn comes, or less if others leave. Null if it is taken.
    pub turn_in_ms: Option<u64>,
}

impl HoldBody {
    /// Milliseconds until it ends, or its turn comes.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.ends_in_ms.or(self.turn_in_ms).unwrap_or_default()
    }
}

/// State of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(inline))]
pub enum HoldState {
    /// It is there.
    Taken,
    /// It waits for its turn.
    Waiting,
}

impl HoldState {
    /// The word in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Waiting => "waiting",
        }
    }
}

/// The keys that were refused most often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TopBody {
    /// The keys, those refused most often first.
    pub keys: Vec<RefusedKeyBody>,
    /// Length of the window in which refusals are counted.
    pub window_ms: u64,
}

/// A key that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RefusedKeyBody {
    /// Empty for keys of `CL.THROTTLE`.
    pub domain: String,
    /// Its rule.
    pub rule: String,
    /// Its values; null where the entry was missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<BTreeMap<String, Option<String>>>,
    /// With `hash=true`, in place of entries: the hash that the decision log has with `decision_log_hash_keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(regex(pattern = "^[0-9a-f]{32}$")))]
    pub hash: Option<String>,
    /// Number of refusals of the key; if that is not known exactly, the most that it can be.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub refusals: u64,
    /// At least so often.
    pub at_least: u64,
}

/// A request to run rules in shadow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CandidateRequest {
    /// The rules, as in a file; at most 4 MiB with the rest of the body.
    pub text: String,
    /// Reason, for people; at most 255 characters.
    #[serde(default)]
    pub note: String,
    /// Number of the store of rules that it takes the place of, from 0. Without a store it takes the place of all
    /// files.
    #[serde(default)]
    pub store: usize,
}

/// A candidate runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StartedBody {
    /// Changes, in a line.
    pub change: String,
}

/// No candidate runs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StoppedBody {
    /// True if one ran.
    pub stopped: bool,
}

/// Rules that run in shadow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CandidateBody {
    /// Their results; null if none run.
    pub candidate: Option<RunningCandidateBody>,
}

/// Results of rules that run in shadow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RunningCandidateBody {
    /// Changes, in a line.
    pub change: String,
    /// Reason, for people.
    pub note: String,
    /// Their starter.
    pub by: String,
    /// Time of the start, in seconds since 1970.
    pub at: i64,
    /// Calls since then.
    #[serde(flatten)]
    pub counts: CandidateCounts,
    /// The keys of calls that were allowed and that they would refuse, most often first.
    pub keys: Vec<RefusedKeyBody>,
    /// Of a coordinator: the nodes that run them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<CandidateNodes>,
}

/// Calls since a candidate was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CandidateCounts {
    /// Calls that it decided since it was started.
    pub calls: u64,
    /// Of these, calls that were allowed and that it would refuse.
    pub would_refuse: u64,
    /// Calls that were refused and that it would allow.
    pub would_allow: u64,
    /// Calls of domains that it does not have.
    pub unanswered: u64,
}

/// The nodes that are to run a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CandidateNodes {
    /// Nodes that run it.
    pub running: usize,
    /// Number of all nodes.
    pub of: usize,
    /// Reasons why others do not, each with its number.
    pub refused: Vec<String>,
}
