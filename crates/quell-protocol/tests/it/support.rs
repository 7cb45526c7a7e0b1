//! Helpers of several tests: frames from words, all commands of an input, replies as values, and
//! hand-made verdicts.

use std::sync::Arc;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::verdict::{RuleDecision, Verdict};
use quell_protocol::resp::{
    Args, Command, CommandError, Decoded, Decoder, Encoder, FrameError, FrameLimits, Protocol,
};

/// A command as an array of bulk strings.
pub(crate) fn frame(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A command from words separated by spaces.
pub(crate) fn words(line: &str) -> Vec<u8> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    frame(&words)
}

/// The arguments, copied.
pub(crate) fn owned(args: Args<'_>) -> Vec<Vec<u8>> {
    args.iter().map(<[u8]>::to_vec).collect()
}

/// Every command of a complete input, and how the input ends: with nothing left, in the middle of a
/// frame, or with an error.
pub(crate) fn decode_all(input: &[u8]) -> (Vec<Vec<Vec<u8>>>, Result<usize, FrameError>) {
    let mut decoder = Decoder::new(FrameLimits::default());
    let mut commands = Vec::new();
    let mut start = 0;
    loop {
        match decoder.decode(&input[start..]) {
            Ok(Decoded::Command { args, length }) => {
                assert!(length > 0 && start + length <= input.len());
                commands.push(owned(args));
                start += length;
            }
            Ok(Decoded::Nothing { length }) => {
                assert!(length > 0 && start + length <= input.len());
                start += length;
            }
            Ok(Decoded::Incomplete { needed }) => {
                assert!(needed > 0);
                return (commands, Ok(input.len() - start));
            }
            Err(error) => return (commands, Err(error)),
        }
    }
}

/// Reads the one command of `input` and gives it to `look`.
pub(crate) fn parse<T>(
    input: &[u8],
    look: impl FnOnce(Result<Command<'_>, CommandError>) -> T,
) -> T {
    let mut decoder = Decoder::new(FrameLimits::default());
    match decoder.decode(input).unwrap() {
        Decoded::Command { args, length } => {
            assert_eq!(length, input.len());
            look(Command::parse(args))
        }
        other => panic!("no command: {other:?}"),
    }
}

/// The text of the error that `line` gets.
pub(crate) fn refusal(line: &str) -> String {
    parse(&words(line), |command| {
        let error = match command {
            Ok(command) => panic!("{line} is accepted: {command:?}"),
            Err(error) => error,
        };
        let mut out = Vec::new();
        error.write(&mut Encoder::new(&mut out, Protocol::Resp2));
        let reply = String::from_utf8(out).unwrap();
        let text = reply.strip_prefix('-').unwrap();
        text.strip_suffix("\r\n").unwrap().to_owned()
    })
}

/// Bytes that `write` writes.
pub(crate) fn written(protocol: Protocol, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Encoder::new(&mut out, protocol));
    out
}

/// A reply as a client reads it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Text(String),
    Integer(i64),
    Boolean(bool),
    Null,
    List(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    /// Reads the one reply of `bytes`.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let (reply, rest) = Self::first(bytes);
        assert!(rest.is_empty(), "{:?} follows", rest.escape_ascii());
        reply
    }

    fn first(bytes: &[u8]) -> (Self, &[u8]) {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let head = std::str::from_utf8(&bytes[1..end]).unwrap();
        let rest = &bytes[end + 2..];
        match bytes[0] {
            b'+' => (Self::Text(head.to_owned()), rest),
            b':' => (Self::Integer(head.parse().unwrap()), rest),
            b'#' => (Self::Boolean(head == "t"), rest),
            b'_' => (Self::Null, rest),
            b'$' | b'*' if head == "-1" => (Self::Null, rest),
            kind @ (b'$' | b'=') => {
                let length: usize = head.parse().unwrap();
                assert_eq!(&rest[length..length + 2], b"\r\n");
                let skip = if kind == b'=' { 4 } else { 0 };
                let text = String::from_utf8(rest[skip..length].to_vec()).unwrap();
                (Self::Text(text), &rest[length + 2..])
            }
            b'*' | b'~' => {
                let (list, rest) = Self::several(head.parse().unwrap(), rest);
                (Self::List(list), rest)
            }
            b'%' => {
                let pairs: usize = head.parse().unwrap();
                let (list, rest) = Self::several(pairs * 2, rest);
                let pairs = list.chunks(2).map(|p| (p[0].clone(), p[1].clone()));
                (Self::Map(pairs.collect()), rest)
            }
            other => panic!("a reply cannot begin with {:?}", char::from(other)),
        }
    }

    fn several(count: usize, mut rest: &[u8]) -> (Vec<Self>, &[u8]) {
        let mut list = Vec::new();
        for _ in 0..count {
            let (reply, after) = Self::first(rest);
            list.push(reply);
            rest = after;
        }
        (list, rest)
    }

    /// A flat list as a map, at all levels, with 1 and 0 unchanged: RESP2 as a client that knows the
    /// fields reads it.
    pub(crate) fn field(&self, name: &str) -> &Self {
        let wanted = Self::Text(name.to_owned());
        let found = match self {
            Self::Map(pairs) => pairs.iter().find(|(key, _)| *key == wanted).map(|p| &p.1),
            Self::List(flat) => flat.chunks(2).find(|p| p[0] == wanted).map(|p| &p[1]),
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }
}

/// A decision that allows.
pub(crate) fn allow(limit: u64, remaining: u64, reset_after: Duration) -> Decision {
    Decision {
        outcome: Outcome::Allow,
        limit,
        remaining,
        reset_after,
        delay: Duration::ZERO,
        banned: false,
    }
}

/// A decision that denies.
pub(crate) fn deny(limit: u64, retry_after: RetryAfter, reset_after: Duration) -> Decision {
    Decision {
        outcome: Outcome::Deny(retry_after),
        ..allow(limit, 0, reset_after)
    }
}

/// A verdict of these rules: name, whether in shadow, decision.
pub(crate) fn verdict(rules: &[(&str, bool, Decision)]) -> Verdict {
    let decisions = rules.iter().map(|(rule, shadow, decision)| RuleDecision {
        rule: Arc::from(*rule),
        shadow: *shadow,
        cost: Cost::ONE,
        decision: *decision,
        rung: None,
        bound: None,
    });
    Verdict::combine(decisions)
}
