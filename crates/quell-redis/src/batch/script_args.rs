//! Combines the arguments of several script calls into one batch, and splits the reply.

use crate::resp::Value;

use crate::link::{Failure, of_entry};
use crate::script::ScriptArgs;

/// Set beside the opcode if the call has instants of its own.
const GIVEN: u8 = 8;

/// Outcome of a call of a batch.
#[derive(Debug)]
pub(super) enum CallOutcome {
    Answer(Result<Value, Failure>),
    /// The call was not run: the caller sends it alone.
    NotRun,
}

/// The keys and arguments of several calls, as the batch script reads them.
pub(super) fn combine<'w>(questions: impl Iterator<Item = &'w ScriptArgs>) -> ScriptArgs {
    let mut layout = Vec::new();
    let mut all = ScriptArgs::new(Vec::new(), vec![Vec::new()]);
    for args in questions {
        let Some((head, charges)) = args.arguments.split_first() else {
            continue;
        };
        let Some((opcode, instants)) = head.split_first() else {
            continue;
        };
        let given = if instants.is_empty() { 0 } else { GIVEN };
        layout.push(opcode | given);
        layout.push(u8::try_from(args.keys.len()).unwrap_or(u8::MAX));
        if given > 0 {
            all.arguments.push(instants.to_vec());
        }
        // Where the head of this call would be.
        let head = all.arguments.len() - 1;
        let doubted = args.doubted.iter().map(|at| head + at);
        all.doubted.extend(doubted);
        all.arguments.extend_from_slice(charges);
        all.keys.extend_from_slice(&args.keys);
    }
    if let Some(first) = all.arguments.first_mut() {
        *first = layout;
    }
    all
}

/// The outcome of one call, from its part of the reply.
pub(super) fn outcome_of(answer: Value) -> CallOutcome {
    let text = match &answer {
        Value::BulkString(bytes) => bytes.strip_prefix(b"!"),
        _ => None,
    };
    match text.map(String::from_utf8_lossy) {
        None => CallOutcome::Answer(Ok(answer)),
        Some(text) => match of_entry(text.into_owned()) {
            Some(failure) => CallOutcome::Answer(Err(failure)),
            None => CallOutcome::NotRun,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_stand_side_by_side_with_their_instants_where_they_have_any() {
        let args = |head: &[u8], keys: &[&[u8]], doubted: &[usize]| ScriptArgs {
            keys: keys.iter().map(|key| key.to_vec()).collect(),
            arguments: [head, b"c1", b"c2"]
                .iter()
                .take(keys.len() + 1)
                .map(|part| part.to_vec())
                .collect(),
            doubted: doubted.to_vec(),
        };
        let questions = [
            args(&[1], &[b"a", b"b"], &[2]),
            args(b"\0instants", &[b"a"], &[1]),
            args(&[0], &[b"c"], &[]),
        ];
        let ScriptArgs {
            keys,
            arguments,
            doubted,
        } = combine(questions.iter());
        assert_eq!(keys, [b"a", b"b", b"a", b"c"]);
        assert_eq!(doubted, [2, 4]);
        let expected: [&[u8]; 6] = [
            &[1, 2, GIVEN, 1, 0, 1],
            b"c1",
            b"c2",
            b"instants",
            b"c1",
            b"c1",
        ];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn errors_among_answers_are_told_apart() {
        let outcome_of = |text: &[u8]| outcome_of(Value::BulkString(text.to_vec()));
        for foreign in [
            b"!WRONGTYPE Operation against a key".as_slice(),
            b"!@user_script: 3: -WRONGTYPE Operation",
            b"!user_script:9: QUELLFOREIGN a value that Quell did not write",
        ] {
            let outcome = outcome_of(foreign);
            assert!(
                matches!(outcome, CallOutcome::Answer(Err(Failure::Foreign(_)))),
                "{outcome:?}"
            );
        }
        let full = outcome_of(b"!OOM command not allowed when used memory > 'maxmemory'.");
        assert!(matches!(
            full,
            CallOutcome::Answer(Err(Failure::Refused(_)))
        ));
        for away in [
            "!READONLY You can't write",
            "!@user_script: 3: -READONLY You",
        ] {
            assert!(matches!(outcome_of(away.as_bytes()), CallOutcome::NotRun));
        }
        assert!(matches!(
            outcome_of(b"C\x19answer"),
            CallOutcome::Answer(Ok(_))
        ));
    }
}
