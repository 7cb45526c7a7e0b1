//! Check: what an operator should change about a store that answers.
//!
//! A right that is missing shows only when it is needed, perhaps behind the first write of a script;
//! and a store that evicts forgets whom it has refused without a word. So both are asked for.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::link::{Failure, Place};
use crate::store::RedisStore;

impl RedisStore {
    /// What somebody should change about the store, a sentence each: commands that the user may not
    /// use, and servers that may evict states to make room. Uses every command on a key of its own.
    ///
    /// # Errors
    /// [`Failure`] if a server does not answer, or refuses for another reason.
    pub async fn warnings(&self) -> Result<Vec<String>, Failure> {
        let places = self.link.places();
        let asked = places.iter().map(async |place| {
            let missing = self.missing_rights(place).await?;
            let evicts = self.eviction(place).await?;
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

    async fn missing_rights(&self, place: &Arc<Place>) -> Result<Option<String>, Failure> {
        let Some(tag) = self.link.tag_at(place) else {
            return Ok(None);
        };
        let keys = [self.names.rights(&tag)];
        let [name] = &keys;
        let script = &self.scripts.rights;
        let asked = self.in_time(name, script.run(&self.link, &keys, &[]));
        let missing = match asked.await {
            Ok(Value::Array(missing)) => missing,
            // Not even that script may be run.
            Err(Failure::Refused(reason)) if reason.contains("NOPERM") => {
                return Ok(Some(format!(
                    "the store's user has too few rights: {reason}"
                )));
            }
            reply => return reply.map(|_| None),
        };
        let missing: Vec<_> = missing
            .iter()
            .filter_map(|command| match command {
                Value::BulkString(name) => {
                    Some(format!("+{}", String::from_utf8_lossy(name).to_lowercase()))
                }
                _ => None,
            })
            .collect();
        Ok((!missing.is_empty()).then(|| {
            format!(
                "the store's user lacks rights that some calls need: give it {} on its keys",
                missing.join(" ")
            )
        }))
    }

    /// Whether a server drops states when it is full. One that does not say is not asked again.
    async fn eviction(&self, place: &Arc<Place>) -> Result<Option<String>, Failure> {
        let Some(tag) = self.link.tag_at(place) else {
            return Ok(None);
        };
        let name = self.names.rights(&tag);
        let mut info = Cmd::new();
        info.arg("INFO").arg("memory");
        let said = match self.in_time(&name, self.link.call(&name, &info)).await {
            Ok(Value::BulkString(said)) => String::from_utf8_lossy(&said).into_owned(),
            // It may be forbidden, which is fine.
            Ok(_) | Err(Failure::Refused(_)) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let policy = eviction_policy(&said);
        Ok(policy.map(|policy| {
            format!(
                "{} may drop states when it is full (maxmemory-policy {policy}), and forget whom it \
                 refused: set maxmemory-policy to noeviction",
                place.name()
            )
        }))
    }
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
