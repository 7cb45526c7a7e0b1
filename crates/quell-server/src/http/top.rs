//! `/v1/top`: the keys that were refused most often in the last few minutes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell_protocol::http::{Problem, RefusedKeyBody, TopBody};

use super::caller::caller;
use super::reply::{self, RouteResult, parameters, unknown_parameter};
use crate::access::{Caller, Role};
use crate::shared::Shared;

/// Keys in a list without `count`.
pub(super) const KEYS: usize = 20;

/// Keys that a list shows at most.
pub(super) const MAX_KEYS: usize = 1_000;

/// The query string.
struct Parameters {
    domain: Option<String>,
    rule: Option<String>,
    count: usize,
    hash: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            domain: None,
            rule: None,
            count: KEYS,
            hash: false,
        }
    }
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Box<Problem>> {
        let mut read = Self::default();
        for (name, value) in parameters(query) {
            match (&*name, value.parse(), &*value) {
                ("domain", ..) => read.domain = Some(value.into_owned()),
                ("rule", ..) => read.rule = Some(value.into_owned()),
                ("count", Ok(count @ 1..=MAX_KEYS), _) => read.count = count,
                ("count", ..) => {
                    let detail =
                        format!("count={value} is not a number of keys: write 1 to {MAX_KEYS}");
                    return Err(reply::invalid(detail));
                }
                ("hash", _, "true") => read.hash = true,
                ("hash", _, "false") => read.hash = false,
                ("hash", ..) => {
                    return Err(reply::invalid(format!("hash={value}: write true or false")));
                }
                _ => return Err(unknown_parameter(&name, "domain, rule, count and hash")),
            }
        }
        Ok(read)
    }

    fn wants(&self, domain: &str, rule: &str) -> bool {
        let is_wanted =
            |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|it| it == is);
        is_wanted(&self.domain, domain) && is_wanted(&self.rule, rule)
    }
}

pub(super) async fn top(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let wanted = Parameters::parse(request.uri().query())?;
    if let Some(domain) = &wanted.domain {
        caller.check(Role::Read, Some(domain))?;
    }
    let (keys, window) = list(&shared, &caller, &wanted);
    Ok(reply::json(&TopBody {
        keys,
        window_ms: reply::milliseconds(window),
    }))
}

/// The keys that a caller may see, and how far back they are counted.
fn list(shared: &Shared, caller: &Caller, wanted: &Parameters) -> (Vec<RefusedKeyBody>, Duration) {
    let (refused, window) = shared.top.list(shared.limiter.now().monotonic);
    let is_hashed = wanted.hash || shared.top.naming().is_hashed;
    let keys = refused.iter().filter_map(|refused| {
        let key = refused.body(is_hashed)?;
        let is_shown = caller.reaches(&key.domain) && wanted.wants(&key.domain, &key.rule);
        is_shown.then_some(key)
    });
    (keys.take(wanted.count).collect(), window)
}

/// The first of them, as without parameters.
pub(super) fn most_refused(shared: &Shared, caller: &Caller) -> (Vec<RefusedKeyBody>, Duration) {
    list(shared, caller, &Parameters::default())
}
