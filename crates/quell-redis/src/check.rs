//! Warnings for the operator about a store that answers: missing rights and eviction.
//!
//! A missing right shows only when it is needed, perhaps after the first write of a script, and a store
//! that evicts keys silently forgets refusals. So both are checked.

use futures_util::future::join_all;

use crate::link::{Endpoint, Failure};
use crate::resp::cmd;
use crate::script::RIGHTS;
use crate::servers::Servers;

/// Changes that an operator should make to the store: see
/// [`RedisStore::warnings`](crate::RedisStore::warnings).
pub(crate) async fn warnings(servers: &Servers) -> Result<Vec<String>, Failure> {
    let endpoints = servers.link.endpoints();
    // A server without slots has nothing to be checked.
    let with_slots = endpoints.iter().filter_map(|endpoint| {
        let tag = servers.link.tag_at(endpoint)?;
        Some((endpoint, servers.names.test_key(&tag, "rights")))
    });
    let asked = with_slots.map(async |(endpoint, key)| {
        let missing = missing_rights(servers, &key).await?;
        let evicts = eviction(servers, endpoint, &key).await?;
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

async fn missing_rights(servers: &Servers, key: &[u8]) -> Result<Option<String>, Failure> {
    let missing: Vec<String> = match servers.run(&RIGHTS, &[key.to_vec()], &[]).await {
        Ok(missing) => missing.read().unwrap_or_default(),
        // The user may not even run that script.
        Err(Failure::Refused(reason)) if reason.contains("NOPERM") => {
            return Ok(Some(format!(
                "the store's user has too few rights: {reason}"
            )));
        }
        Err(failure) => return Err(failure),
    };
    let missing = missing.iter();
    let missing: Vec<_> = missing
        .map(|name| format!("+{}", name.to_lowercase()))
        .collect();
    Ok((!missing.is_empty()).then(|| {
        format!(
            "the store's user lacks rights that some calls need: give it {} on its keys",
            missing.join(" ")
        )
    }))
}

/// Warning about a server that drops states when it is full. A server that may not tell is not asked again.
async fn eviction(
    servers: &Servers,
    endpoint: &Endpoint,
    key: &[u8],
) -> Result<Option<String>, Failure> {
    let info = match servers.call(key, cmd("INFO").arg("memory")).await {
        Ok(info) => info.read::<String>().unwrap_or_default(),
        // It may be forbidden, which is fine.
        Err(Failure::Refused(_)) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    Ok(eviction_policy(&info).map(|policy| {
        format!(
            "{} may drop states when it is full (maxmemory-policy {policy}), and forget whom it \
             refused: set maxmemory-policy to noeviction",
            endpoint.name
        )
    }))
}

/// The policy by which a server makes room, if it does.
fn eviction_policy(info: &str) -> Option<String> {
    let field = |name: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(field, _)| *field == name);
        found.map(|(_, value)| value.trim_end())
    };
    let is_bounded = field("maxmemory").is_some_and(|most| most != "0");
    let policy = field("maxmemory_policy");
    let policy = policy.filter(|policy| is_bounded && *policy != "noeviction");
    policy.map(str::to_owned)
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
            eviction_policy(&info("1000", "allkeys-lru")).as_deref(),
            Some("allkeys-lru")
        );
        assert_eq!(
            eviction_policy(&info("1000", "volatile-ttl")).as_deref(),
            Some("volatile-ttl")
        );
        assert_eq!(eviction_policy(&info("0", "allkeys-lru")), None);
        assert_eq!(eviction_policy(&info("1000", "noeviction")), None);
        assert_eq!(eviction_policy(""), None);
    }
}
