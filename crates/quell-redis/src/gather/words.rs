//! Words: questions as a script is asked them, alone and several at once, and what becomes of each.

use redis::Value;

use crate::link::{Failure, of_entry};

/// Set beside the request if the caller gives the instants.
const GIVEN: u8 = 8;

/// One question as the script for one is asked it: keys, and what follows them, the head first.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// What a caller hears.
#[derive(Debug)]
pub(super) enum Told {
    Answer(Result<Value, Failure>),
    /// It was not run: ask on your own.
    Again,
}

/// Several questions as the script for many is asked them.
pub(super) fn together<'w>(
    questions: impl Iterator<Item = &'w Words>,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut keys, mut layout, mut arguments) = (Vec::new(), Vec::new(), vec![Vec::new()]);
    for words in questions {
        let Some((head, charges)) = words.arguments.split_first() else {
            continue;
        };
        let Some((request, instants)) = head.split_first() else {
            continue;
        };
        let given = if instants.is_empty() { 0 } else { GIVEN };
        layout.push(request | given);
        layout.push(u8::try_from(words.keys.len()).unwrap_or(u8::MAX));
        if given > 0 {
            arguments.push(instants.to_vec());
        }
        arguments.extend_from_slice(charges);
        keys.extend_from_slice(&words.keys);
    }
    if let Some(first) = arguments.first_mut() {
        *first = layout;
    }
    (keys, arguments)
}

/// One answer among others: what the script for one would have said.
pub(super) fn told(answer: Value) -> Told {
    let text = match &answer {
        Value::BulkString(bytes) => bytes.strip_prefix(b"!"),
        _ => None,
    };
    match text.map(String::from_utf8_lossy) {
        None => Told::Answer(Ok(answer)),
        Some(text) => match of_entry(text.into_owned()) {
            Some(failure) => Told::Answer(Err(failure)),
            None => Told::Again,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_stand_side_by_side_with_their_instants_where_they_have_any() {
        let words = |head: &[u8], keys: &[&[u8]]| Words {
            keys: keys.iter().map(|key| key.to_vec()).collect(),
            arguments: [head, b"c1", b"c2"]
                .iter()
                .take(keys.len() + 1)
                .map(|part| part.to_vec())
                .collect(),
        };
        let questions = [
            words(&[1], &[b"a", b"b"]),
            words(b"\0instants", &[b"a"]),
            words(&[0], &[b"c"]),
        ];
        let (keys, arguments) = together(questions.iter());
        assert_eq!(keys, [b"a", b"b", b"a", b"c"]);
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
        let told = |text: &[u8]| told(Value::BulkString(text.to_vec()));
        for foreign in [
            b"!WRONGTYPE Operation against a key".as_slice(),
            b"!@user_script: 3: -WRONGTYPE Operation",
            b"!user_script:9: QUELLFOREIGN a value that Quell did not write",
        ] {
            let told = told(foreign);
            assert!(
                matches!(told, Told::Answer(Err(Failure::Foreign(_)))),
                "{told:?}"
            );
        }
        let full = told(b"!OOM command not allowed when used memory > 'maxmemory'.");
        assert!(matches!(full, Told::Answer(Err(Failure::Refused(_)))));
        for away in [
            "!READONLY You can't write",
            "!@user_script: 3: -READONLY You",
        ] {
            assert!(matches!(told(away.as_bytes()), Told::Again));
        }
        assert!(matches!(told(b"C\x19answer"), Told::Answer(Ok(_))));
    }
}
