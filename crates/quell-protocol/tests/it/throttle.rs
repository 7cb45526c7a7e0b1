//! `CL.THROTTLE`: arguments, limits and the five numbers.

use std::time::Duration;

use quell_core::charge::{Entry, LimitSet, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::RetryAfter;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now};
use quell_protocol::resp::{
    Args, CallMemo, Command, Decoded, Decoder, FrameLimits, Protocol, Read, Reader, Throttle,
};

use crate::support::{Reply, allow, deny, frame, parse, refusal, words, written};

fn throttle<T>(input: &[u8], look: impl FnOnce(Throttle<'_>) -> T) -> T {
    parse(input, |command| match command {
        Ok(Command::Throttle(throttle)) => look(throttle),
        other => panic!("{other:?}"),
    })
}

#[test]
fn arguments() {
    throttle(&words("CL.THROTTLE user:1 15 30 60 2"), |throttle| {
        assert_eq!(throttle.key, b"user:1");
        assert_eq!(throttle.cost, Cost::new(2));
        assert_eq!(throttle.limit.burst(), 16);
        assert_eq!(throttle.limit.rate().count(), 30);
        assert_eq!(throttle.limit.rate().period(), Duration::from_secs(60));
        assert_eq!(throttle.limit.build().unwrap().max(), 16);
    });
    throttle(&words("cl.Throttle k 0 1 1"), |throttle| {
        assert_eq!(throttle.cost, Some(Cost::ONE));
        assert_eq!(throttle.limit.burst(), 1);
    });
    throttle(&words("CL.THROTTLE k 0 1 1 0"), |throttle| {
        assert_eq!(throttle.cost, None);
    });
    throttle(
        &frame(&[b"CL.THROTTLE", b"\xff\0\r\n", b"1", b"1", b"1"]),
        |throttle| {
            assert_eq!(throttle.key, b"\xff\0\r\n");
        },
    );
    throttle(
        &frame(&[b"CL.THROTTLE", b"", b"1", b"1", b"1"]),
        |throttle| {
            assert_eq!(throttle.key, b"");
        },
    );
}

/// A memo returns what parsing would return, however similar other calls look.
#[test]
fn a_memo_knows_calls_by_all_but_their_key() {
    let calls = [
        words("CL.THROTTLE user:1 15 30 60 1"),
        words("CL.THROTTLE user:1234 15 30 60 1"),
        words("CL.THROTTLE k 15 30 60 2"),
        words("CL.THROTTLE k 15 30 60"),
        words("CL.THROTTLE k 15 30 60 0"),
        words("CL.THROTTLE k 15 30 6 0"),
        words("cl.throttle k 15 30 60 1"),
        words("CL.THROTTLE k 1 1 1 1"),
        b"*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n:15\r\n:30\r\n:60\r\n:1\r\n".to_vec(),
        frame(&[
            b"CL.THROTTLE",
            b"\r\n$2\r\n15\r\n",
            b"15",
            b"30",
            b"60",
            b"1",
        ]),
        frame(&[b"CL.THROTTLE", &[b'k'; 99], b"15", b"30", b"60", b"1"]),
        frame(&[b"CL.THROTTLE", &[b'k'; 100], b"15", b"30", b"60", b"1"]),
        frame(&[
            b"CL.THROTTLE",
            b"k",
            b"0000000000000000000000000000000000000000000015",
            b"30",
            b"60",
        ]),
        b"CL.THROTTLE k 15 30 60 1\r\n".to_vec(),
        b"CL.THROTTLE CL.THROTTLE 15 30 60 1\r\n".to_vec(),
    ];
    let mut known = 0;
    for noted in &calls {
        for next in &calls {
            let mut memo = CallMemo::new(&FrameLimits::default());
            assert!(memo.find(next).is_none(), "it knows nothing yet");
            decode(noted, |args, throttle| memo.note(args, &throttle));
            let more = [next.as_slice(), b"*1\r\n$4\r\nPING\r\n"].concat();
            if let Some((found, length)) = memo.find(&more) {
                assert_eq!(length, next.len());
                throttle(next, |read| assert_eq!(found, read));
                known += 1;
            }
            for end in 0..next.len() {
                assert!(memo.find(&next[..end]).is_none(), "cut at {end}");
            }
            if noted == next && next.starts_with(b"*") && next.len() < 95 {
                assert!(memo.find(&more).is_some(), "{}", next.escape_ascii());
            }
        }
    }
    assert!(known > calls.len());
    let small = FrameLimits {
        max_bulk: 20,
        ..FrameLimits::default()
    };
    let mut memo = CallMemo::new(&small);
    decode(&calls[0], |args, throttle| memo.note(args, &throttle));
    assert!(memo.find(&calls[0]).is_none(), "bounds are the decoder's");
}

fn decode(input: &[u8], look: impl FnOnce(Args<'_>, Throttle<'_>)) {
    let mut decoder = Decoder::new(FrameLimits::default());
    match decoder.decode(input) {
        Ok(Decoded::Command { args, .. }) => match Command::parse(args) {
            Ok(Command::Throttle(throttle)) => look(args, throttle),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Integers in the protocol and as text are equivalent.
#[test]
fn integers_and_text_alike() {
    let text = words("CL.THROTTLE k 15 30 60 1");
    let integers = b"*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n:15\r\n:30\r\n:60\r\n:1\r\n";
    throttle(&text, |a| throttle(integers, |b| assert_eq!(a, b)));
}

#[test]
fn the_largest_numbers() {
    throttle(
        &words("CL.THROTTLE k 9223372036854775806 1000000000 1 9223372036854775807"),
        |throttle| {
            assert_eq!(throttle.limit.burst(), i64::MAX.unsigned_abs());
            assert_eq!(throttle.cost, Cost::new(i64::MAX.unsigned_abs()));
            assert!(throttle.limit.build().is_ok());
        },
    );
}

#[test]
fn wrong_arguments() {
    const NUMBER: &str = "is not an integer or out of range: write whole decimal digits, at most 9223372036854775807";
    for (line, expected) in [
        ("CL.THROTTLE", "wrong number of arguments for 'cl.throttle' command, usage: CL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("CL.THROTTLE k", "wrong number of arguments for 'cl.throttle' command, usage: CL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("CL.THROTTLE k 1 1", "wrong number of arguments for 'cl.throttle' command, usage: CL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("CL.THROTTLE k 1 1 1 1 1", "wrong number of arguments for 'cl.throttle' command, usage: CL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("CL.THROTTLE k x 1 1", format!("max_burst {NUMBER}")),
        ("CL.THROTTLE k 1.5 1 1", format!("max_burst {NUMBER}")),
        ("CL.THROTTLE k 1 x 1", format!("count {NUMBER}")),
        ("CL.THROTTLE k 1 1 x", format!("period {NUMBER}")),
        ("CL.THROTTLE k 1 1 1 x", format!("quantity {NUMBER}")),
        ("CL.THROTTLE k 1 1 1 9223372036854775808", format!("quantity {NUMBER}")),
        ("CL.THROTTLE k 99999999999999999999 1 1", format!("max_burst {NUMBER}")),
        ("CL.THROTTLE k -1 1 1", "max_burst is too small: write at least 0".to_owned()),
        ("CL.THROTTLE k 1 0 1", "count is too small: write at least 1".to_owned()),
        ("CL.THROTTLE k 1 -5 1", "count is too small: write at least 1".to_owned()),
        ("CL.THROTTLE k 1 1 0", "period is too small: write at least 1".to_owned()),
        ("CL.THROTTLE k 1 1 -60", "period is too small: write at least 1".to_owned()),
        ("CL.THROTTLE k 1 1 1 -1", "quantity is too small: write at least 0".to_owned()),
        (
            "CL.THROTTLE k 9223372036854775807 1 1",
            "max_burst is too large: write at most 9223372036854775806".to_owned(),
        ),
        (
            "CL.THROTTLE k 1 1000000000001 1",
            "count is too large for this period: write at most 1000000000000 (1000000000000 for each second)".to_owned(),
        ),
        (
            "CL.THROTTLE k 1 9223372036854775807 60",
            "count is too large for this period: write at most 60000000000000 (1000000000000 for each second)".to_owned(),
        ),
        (
            "CL.THROTTLE k 1 1 9223372036854775807",
            "period is too large: write at most 3153600000".to_owned(),
        ),
    ] {
        assert_eq!(refusal(line), format!("ERR {expected}"), "{line}");
    }
}

/// The five numbers of the reply to `line` for `decision`.
fn numbers(line: &str, decision: &quell_core::decision::Decision) -> [i64; 5] {
    let reply = throttle(&words(line), |throttle| {
        written(Protocol::Resp2, |encoder| {
            throttle.write_reply(decision, encoder);
        })
    });
    let Reply::List(list) = Reply::read(&reply) else {
        panic!("{:?}", reply.escape_ascii());
    };
    let numbers: Vec<i64> = list
        .into_iter()
        .map(|number| match number {
            Reply::Integer(number) => number,
            other => panic!("{other:?}"),
        })
        .collect();
    numbers.try_into().unwrap()
}

#[test]
fn replies_round_up_and_saturate() {
    let ms = Duration::from_millis;
    let wait = |ms| RetryAfter::After(Duration::from_millis(ms));
    let asks = "CL.THROTTLE k 15 30 60";
    let looks = "CL.THROTTLE k 15 30 60 0";
    for (line, decision, expected) in [
        (asks, allow(16, 15, ms(2_000)), [0, 16, 15, -1, 2]),
        (asks, allow(16, 15, ms(1)), [0, 16, 15, -1, 1]),
        (asks, allow(16, 16, ms(0)), [0, 16, 16, -1, 0]),
        (asks, deny(16, wait(1), ms(32_001)), [1, 16, 0, 1, 33]),
        (asks, deny(16, wait(1_001), ms(32_000)), [1, 16, 0, 2, 32]),
        (asks, deny(16, RetryAfter::Never, ms(0)), [1, 16, 0, -1, 0]),
        (looks, allow(16, 7, ms(18_000)), [0, 16, 7, -1, 18]),
        (looks, deny(16, wait(1_500), ms(31_500)), [0, 16, 0, -1, 32]),
        (
            asks,
            deny(u64::MAX, RetryAfter::After(Duration::MAX), Duration::MAX),
            [1, i64::MAX, 0, i64::MAX, i64::MAX],
        ),
    ] {
        assert_eq!(numbers(line, &decision), expected, "{line} {decision:?}");
    }
}

/// The example in the documentation of redis-cell: 15 + 1 at once, then one every 2 seconds.
#[test]
fn the_documented_example() {
    let line = "CL.THROTTLE user123 15 30 60 1";
    throttle(&words(line), |throttle| {
        let active = ActiveLimit {
            id: LimitId(1),
            limit: throttle.limit.build().unwrap(),
            since: Monotonic::ORIGIN,
            place: Default::default(),
        };
        let mut state = State::rest(LimitId(1));
        let mut ask = |seconds: u64, cost: Cost| {
            let set = LimitSet::ad_hoc(throttle.key, &active, cost);
            let mut entry = Entry {
                charge: &set.charges()[0],
                state: &mut state,
            };
            let now = Now::from_nanos(1_000_000_000 * (100 + seconds));
            decide_one(now, Operation::Acquire, &mut entry)
        };
        for already in 0..16 {
            let expected = [0, 16, 15 - already, -1, 2 * (already + 1)];
            assert_eq!(numbers(line, &ask(0, Cost::ONE)), expected);
        }
        assert_eq!(numbers(line, &ask(0, Cost::ONE)), [1, 16, 0, 2, 32]);
        assert_eq!(numbers(line, &ask(1, Cost::ONE)), [1, 16, 0, 1, 31]);
        assert_eq!(numbers(line, &ask(2, Cost::ONE)), [0, 16, 0, -1, 32]);
        let seventeen = Cost::new(17).unwrap();
        assert_eq!(numbers(line, &ask(2, seventeen)), [1, 16, 0, -1, 32]);
    });
}

/// Similar calls, another limit, another command and an inline command, each cut anywhere before it
/// is complete.
#[test]
fn a_reader_recognises_what_the_decoder_and_the_parser_read() {
    let frames = [
        frame(&[b"CL.THROTTLE", b"a", b"15", b"30", b"60"]),
        frame(&[b"CL.THROTTLE", b"user:12", b"15", b"30", b"60"]),
        frame(&[b"CL.THROTTLE", b"b", b"15", b"30", b"6"]),
        frame(&[b"cl.throttle", b"c", b"15", b"30", b"6"]),
        frame(&[b"CL.THROTTLE", b"d", b"x", b"30", b"6"]),
        frame(&[b"PING", b"a"]),
        b"CL.THROTTLE e 15 30 60\r\n".to_vec(),
        frame(&[b"CL.THROTTLE", b"f", b"15", b"30", b"60"]),
    ];
    let mut reader = Reader::new(FrameLimits::default());
    let mut recognised = Vec::new();
    for (index, frame) in frames.iter().chain(&frames).enumerate() {
        let followed = [frame.as_slice(), b"*1\r\n$4\r\nQUIT\r\n"].concat();
        let mut decoder = Decoder::new(FrameLimits::default());
        let Ok(Decoded::Command { args, length }) = decoder.decode(frame) else {
            panic!("no command");
        };
        let expected = format!("{:?}", Command::parse(args));
        if let Some((throttle, recognised_length)) = reader.recognise(&followed) {
            assert_eq!(format!("Ok(Throttle({throttle:?}))"), expected);
            assert_eq!(recognised_length, length);
            recognised.push(index);
        }
        for end in 0..frame.len() {
            match reader.read(&frame[..end]) {
                Ok(Read::Incomplete) => {}
                other => panic!("cut at {end}: {other:?}"),
            }
            let is_begun = end > 0 && frame.starts_with(b"*") && end >= 4;
            if is_begun {
                assert!(reader.recognise(&followed).is_none(), "begun: {end}");
            }
        }
        let Ok(Read::Command(request)) = reader.read(&followed) else {
            panic!("no command");
        };
        assert_eq!(format!("{:?}", request.command), expected);
        assert_eq!(request.length, length);
        assert!(request.args.iter().eq(args.iter()));
    }
    assert_eq!(recognised, [1, 8, 9]);
}
