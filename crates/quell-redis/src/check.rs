//! Warnings for the operator about a store that answers: missing rights and eviction.
//!
//! A missing right shows only when it is needed, perhaps after the first write of a script, and a store
//! that evicts keys silently forgets refusals. So both are checked.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::link::{Endpoint, Failure};
use crate::script::RIGHTS;
use crate::servers::Servers;

/// What an operator should change about the store: see [`RedisStore::warnings`](crate::RedisStore::warnings).
pub(crate) async fn warnings(servers: &Servers) -> Result<Vec<String>, Failure> {
    let endpoints = servers.link.endpoints();
    let asked = endpoints.iter().map(async |endpoint| {
        let missing = missing_rights(servers, endpoint).await?;
        let evicts = eviction(servers, endpoint).await?;
        Ok([missing, evicts])
    });
    let mut warnings: Vec<String> = Vec::new();
    for answer in join_all(asked).await {
        let answer: Result<_, Failure> = answer;
        for warning in answer?.into_iter().flatten() {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    Ok(warnings)
}

async fn missing_rights(
    servers: &Servers,
    endpoint: &Arc<Endpoint>,
) -> Result<Option<String>, Failure> {
    let Some(tag) = servers.link.tag_at(endpoint) else {
        return Ok(None);
    };
    let keys = [servers.names.rights(&tag)];
    let missing: Vec<String> = match servers.run(&RIGHTS, &keys, &[]).await {
        Ok(missing) => redis::from_redis_value(missing).unwrap_or_default(),
        // The user may not even run that script.
        Err(Failure::Refused(reason)) if reason.contains("NOPERM") => {
            return Ok(Some(format!(
                "the store's user has too few rights: {reason}"
            )));
        }
        Err(failure) => return Err(failure),
    };
    let missing = missing
        .iter()
        .map(|name| format!("+{}", name.to_lowercase()));
    let missing: Vec<_> = missing.collect();
    Ok((!missing.is_empty()).then(|| {
        format!(
            "the store's user lacks rights that some calls need: give it {} on its keys",
            missing.join(" ")
        )
    }))
}

/// Whether a server drops states when it is full. One that does not say is not asked again.
async fn eviction(servers: &Servers, endpoint: &Arc<Endpoint>) -> Result<Option<String>, Failure> {
    let Some(tag) = servers.link.tag_at(endpoint) else {
        return Ok(None);
    };
    let name = servers.names.rights(&tag);
    let said = match servers.call(&name, redis::cmd("INFO").arg("memory")).await {
        Ok(said) => redis::from_redis_value::<String>(said).unwrap_or_default(),
        // It may be forbidden, which is fine.
        Err(Failure::Refused(_)) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let policy = eviction_policy(&said);
    Ok(policy.map(|policy| {
        format!(
            "{} may drop states when it is full (maxmemory-policy {policy}), and forget whom it \
             refused: set maxmemory-policy to noeviction",
            endpoint.name()
        )
    }))
}

/// The policy by which a server makes room, if it does.
fn eviction_policy(info: &str) -> Option<&str> {
    let field = |name: &str| {
        let mut lines = info.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim)
    };
    let is_bounded = field("maxmemory").is_some_and(|most| most != "0");
    field("maxmemory_policy").filter(|policy| is_bounded && *policy != "noeviction")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_where_its_memory_is_bounded_and_it_makes_room() {
        let info = |most: &str, policy: &str| {
            format!(
                "# Memory\r\nused_memory:9\r\nmaxmemory:{most}\r\nmaxmemory_human:1G\r\nmaxmemory_policy:{policy}\r\n"
            )
        };
        assert_eq!(
            eviction_policy(&info("1000", "allkeys-lru")),
            Some("allkeys-lru")
        );
        assert_eq!(
            eviction_policy(&info("1000", "volatile-ttl")),
            Some("volatile-ttl")
        );
        assert_eq!(eviction_policy(&info("0", "allkeys-lru")), None);
        assert_eq!(eviction_policy(&info("1000", "noeviction")), None);
        assert_eq!(eviction_policy(""), None);
    }
}
