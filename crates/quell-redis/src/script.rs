//! The Lua scripts, and how they are run: by hash, with the text if the server does not have it.

use std::sync::{Arc, OnceLock};

use sha1::{Digest as _, Sha1};

use crate::encode::doubt;
use crate::link::Command;
use crate::resp::cmd;

/// The text of a script from its parts.
macro_rules! parts {
    ($($name:literal)*) => {
        concat!($(include_str!(concat!("script/", $name, ".lua"))),*)
    };
}

/// The script that decides, in the order in which its parts need each other.
macro_rules! decide {
    () => {
        parts!(
            "fast_bucket" "fast_set" "number" "limit" "state" "bucket" "window" "settle" "check" "ban"
            "decide" "hold/head" "hold/columns" "hold/adaptive" "hold/engine" "hold/warm" "hold/carry"
            "hold/versions" "hold/timeline" "hold/wait_queue" "hold/box" "hold/ask" "hold/claim"
            "hold/end"
        )
    };
}

/// Decides one set, and makes and ends holds.
pub(crate) static DECIDE: Script = Script::new(decide!());

/// Decides several sets, each by the whole of [`DECIDE`], which is a function in it.
pub(crate) static DECIDE_BATCH: Script = Script::new(concat!(
    "local function decide(KEYS, ARGV)\n",
    decide!(),
    "\nend\n",
    parts!("batch"),
));

/// Lists commands that this user may not use.
pub(crate) static RIGHTS: Script = Script::new(parts!("rights"));

/// Writes the pointer of an id.
pub(crate) static POINT: Script = Script::new(parts!("point"));

/// Adds a key to the list of banned keys, and drops some of those whose ban is over.
pub(crate) static NAME_BAN: Script = Script::new(parts!("names" "name_ban"));

/// Takes a key off the list of banned keys.
pub(crate) static DROP_NAME: Script = Script::new(parts!("names" "drop_name"));

/// Reads why operators banned keys.
pub(crate) static BAN_REASONS: Script = Script::new(parts!("ban_reasons"));

/// Notes whether a node owes charges, and returns how many others do.
pub(crate) static UNPAID_NODES: Script = Script::new(parts!("unpaid_nodes"));

/// Adds a version of the rules, if the head is still the expected one.
pub(crate) static PUSH_RULES: Script = Script::new(parts!("push_rules"));

/// Makes changes of overrides, if they expect what is there.
pub(crate) static APPLY_OVERRIDES: Script = Script::new(parts!("overrides/apply"));

/// Reads changes of overrides after a position.
pub(crate) static OVERRIDE_CHANGES: Script = Script::new(parts!("overrides/changes"));

/// Lists overrides.
pub(crate) static LIST_OVERRIDES: Script = Script::new(parts!("overrides/list"));

/// Notes up to where a follower of overrides has everything, and returns the head.
pub(crate) static REPORT_FOLLOWER: Script = Script::new(parts!("overrides/report"));

/// Lists followers of overrides.
pub(crate) static OVERRIDE_FOLLOWERS: Script = Script::new(parts!("overrides/followers"));

/// A script with its hash. A server that does not know the hash gets the text.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    const fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: OnceLock::new(),
        }
    }

    /// The command that runs the script on these keys.
    pub(crate) fn command(&'static self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Command {
        let hash = || {
            let digest = Sha1::digest(self.text.as_bytes());
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let hash = self.hash.get_or_init(hash);
        let mut command = cmd("EVALSHA");
        command.arg(hash).arg(keys.len());
        for bytes in keys.iter().chain(arguments) {
            command.arg(bytes.as_slice());
        }
        Command::from_script(&command, hash, self.text)
    }
}

/// The keys and arguments of a script call; the first argument is the head.
#[derive(Clone, Debug)]
pub(crate) struct ScriptArgs {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// Arguments that are charges whose missing states count as lost on a server that may have lost its
    /// memory.
    pub(crate) doubted: Vec<usize>,
}

impl ScriptArgs {
    pub(crate) const fn new(keys: Vec<Vec<u8>>, arguments: Vec<Vec<u8>>) -> Self {
        Self {
            keys,
            arguments,
            doubted: Vec::new(),
        }
    }

    /// The key whose server is asked.
    pub(crate) fn key(&self) -> &[u8] {
        self.keys.first().map_or(&[], Vec::as_slice)
    }

    /// The command that runs `script` with these.
    pub(crate) fn command(self: &Arc<Self>, script: &'static Script) -> Command {
        let command = script.command(&self.keys, &self.arguments);
        if self.doubted.is_empty() {
            return command;
        }
        let args = Arc::clone(self);
        command.or_in_doubt(move || {
            let mut arguments = args.arguments.clone();
            for at in &args.doubted {
                arguments.get_mut(*at).into_iter().for_each(doubt);
            }
            script.command(&args.keys, &arguments)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Commands of Redis 6.2; a longer list needs a newer server. `PSETEX` and not `SET` with options, some
    /// of which are younger.
    const COMMANDS: [&str; 18] = [
        "DEL",
        "GET",
        "GETRANGE",
        "HMGET",
        "HSET",
        "PEXPIRE",
        "PSETEX",
        "PTTL",
        "SETRANGE",
        "STRLEN",
        "TIME",
        "XADD",
        "ZADD",
        "ZCOUNT",
        "ZRANGE",
        "ZREM",
        "ZREMRANGEBYRANK",
        "ZREMRANGEBYSCORE",
    ];

    #[test]
    fn every_command_is_one_of_redis_6_2() {
        let mut used = BTreeSet::new();
        for script in [
            &DECIDE,
            &DECIDE_BATCH,
            &NAME_BAN,
            &DROP_NAME,
            &BAN_REASONS,
            &UNPAID_NODES,
            &POINT,
        ] {
            let text = script.text;
            assert!(!text.starts_with("#!"), "flags need Redis 7");
            assert!(!text.contains("redis.setresp") && !text.contains("server."));
            for call in text.split("call('").skip(1) {
                used.insert(call.split('\'').next().unwrap_or_default());
            }
        }
        assert!(used.len() > 8, "{used:?}");
        for command in used {
            assert!(COMMANDS.contains(&command), "{command}");
            assert!(
                RIGHTS.text.contains(&format!("try('{command}'")),
                "{command}"
            );
        }
    }
}
