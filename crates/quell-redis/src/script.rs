//! The Lua scripts, and how they are run: by hash, with the text if the server does not have it.

use redis::{Cmd, Script, Value};

use crate::hold_hints::HoldHints;
use crate::link::{Failure, Link};

/// What both scripts that decide know, in the order in which its parts need each other.
macro_rules! algorithms {
    () => {
        concat!(
            include_str!("script/number.lua"),
            include_str!("script/limit.lua"),
            include_str!("script/state.lua"),
            include_str!("script/bucket.lua"),
            include_str!("script/window.lua"),
            include_str!("script/settle.lua"),
            include_str!("script/check.lua"),
            include_str!("script/ban.lua"),
        )
    };
}

/// The script that decides, in the order in which its parts need each other.
macro_rules! decide {
    () => {
        concat!(
            include_str!("script/fast_bucket.lua"),
            include_str!("script/fast_set.lua"),
            algorithms!(),
            include_str!("script/load.lua"),
            include_str!("script/decide.lua"),
        )
    };
}

/// Decides one set.
const DECIDE: &str = decide!();

/// Decides several sets, each by the whole of [`DECIDE`], which is a function in it.
const DECIDE_BATCH: &str = concat!(
    "local function decide(KEYS, ARGV)\n",
    decide!(),
    "\nend\n",
    include_str!("script/batch.lua"),
);

/// The script that decides where something is held or owed, and ends holds.
const HOLD: &str = concat!(
    include_str!("script/hold/head.lua"),
    algorithms!(),
    include_str!("script/hold/columns.lua"),
    include_str!("script/hold/adaptive.lua"),
    include_str!("script/hold/engine.lua"),
    include_str!("script/hold/warm.lua"),
    include_str!("script/hold/carry.lua"),
    include_str!("script/hold/versions.lua"),
    include_str!("script/hold/timeline.lua"),
    include_str!("script/hold/wait_queue.lua"),
    include_str!("script/hold/box.lua"),
    include_str!("script/hold/ask.lua"),
    include_str!("script/hold/claim.lua"),
    include_str!("script/hold/end.lua"),
);

/// Finds out which commands this user may not use.
const RIGHTS: &str = include_str!("script/rights.lua");

/// Writes where an id points to.
const POINT: &str = include_str!("script/point.lua");

/// Adds a key to the list of banned keys, and drops those whose ban is over.
const NAME_BAN: &str = include_str!("script/name_ban.lua");

/// Says whether a node owes something, and hears whether others do.
const UNPAID_NODES: &str = include_str!("script/unpaid_nodes.lua");

/// Scripts by name; a server that does not know one gets its text in the same call.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) decide: Loaded,
    pub(crate) hold: Loaded,
    pub(crate) hold_hints: HoldHints,
    pub(crate) decide_batch: Loaded,
    pub(crate) name_ban: Loaded,
    pub(crate) unpaid_nodes: Loaded,
    pub(crate) point: Loaded,
    pub(crate) rights: Loaded,
}

/// A script with its hash.
#[derive(Debug)]
pub(crate) struct Loaded {
    text: &'static str,
    hash: String,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            decide: Loaded::new(DECIDE),
            hold: Loaded::new(HOLD),
            hold_hints: HoldHints::new(),
            decide_batch: Loaded::new(DECIDE_BATCH),
            name_ban: Loaded::new(NAME_BAN),
            unpaid_nodes: Loaded::new(UNPAID_NODES),
            point: Loaded::new(POINT),
            rights: Loaded::new(RIGHTS),
        }
    }
}

impl Loaded {
    pub(crate) fn new(text: &'static str) -> Self {
        let hash = Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs the script on the server that has `keys`.
    pub(crate) async fn run(
        &self,
        link: &Link,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Failure> {
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        let by_hash = command("EVALSHA", &self.hash, keys, arguments);
        match link.call(first, &by_hash).await {
            // Never loaded, flushed, or the server was started anew: it ran nothing.
            Err(Failure::NoScript) => {
                let with_text = command("EVAL", self.text, keys, arguments);
                link.call(first, &with_text).await
            }
            answer => answer,
        }
    }
}

fn command(name: &str, script: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(script).arg(keys.len());
    for bytes in keys.iter().chain(arguments) {
        command.arg(bytes.as_slice());
    }
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What Redis 6.2 has; a longer list needs a newer server. `PSETEX` and not `SET` with options,
    /// some of which are younger.
    const COMMANDS: [&str; 15] = [
        "DEL",
        "GET",
        "GETRANGE",
        "PEXPIRE",
        "PSETEX",
        "PTTL",
        "SETRANGE",
        "STRLEN",
        "TIME",
        "XADD",
        "ZADD",
        "ZRANGE",
        "ZREM",
        "ZREMRANGEBYRANK",
        "ZREMRANGEBYSCORE",
    ];

    #[test]
    fn every_command_is_one_of_redis_6_2() {
        let mut used = BTreeSet::new();
        for text in [DECIDE, DECIDE_BATCH, HOLD, NAME_BAN, UNPAID_NODES, POINT] {
            assert!(!text.starts_with("#!"), "flags need Redis 7");
            assert!(!text.contains("redis.setresp") && !text.contains("server."));
            for call in text.split("call('").skip(1) {
                used.insert(call.split('\'').next().unwrap_or_default());
            }
        }
        assert!(used.len() > 8, "{used:?}");
        for command in used {
            assert!(COMMANDS.contains(&command), "{command}");
            assert!(RIGHTS.contains(&format!("try('{command}'")), "{command}");
        }
    }
}
