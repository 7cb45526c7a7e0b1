//! Whole frames: what each kind of argument becomes, and which bytes are not a frame.

use quell_protocol::resp::{Decoded, Decoder, FrameError, FrameLimits};

use crate::support::{decode_all, frame, owned};

/// Commands as lists of arguments.
type Commands = &'static [&'static [&'static [u8]]];

#[test]
fn sound_frames() {
    let cases: [(&[u8], Commands); 25] = [
        (b"*1\r\n$4\r\nPING\r\n", &[&[b"PING"]]),
        (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[&[b"ECHO", b""]]),
        (
            b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\0\xff\r\n",
            &[&[b"ECHO", b"\r\n\0\xff"]],
        ),
        (b"*2\r\n$1\r\na\r\n:5\r\n", &[&[b"a", b"5"]]),
        (b"*3\r\n:-5\r\n:+5\r\n:0\r\n", &[&[b"-5", b"+5", b"0"]]),
        (b"*2\r\n+simple text\r\n+\r\n", &[&[b"simple text", b""]]),
        (
            b"*1\r\n(3492890328409238509324850943850943825024385\r\n",
            &[&[b"3492890328409238509324850943850943825024385"]],
        ),
        (
            b"*3\r\n,1.5\r\n,-inf\r\n,10\r\n",
            &[&[b"1.5", b"-inf", b"10"]],
        ),
        (b"*1\r\n=8\r\ntxt:text\r\n", &[&[b"text"]]),
        (b"*1\r\n=4\r\nmkd:\r\n", &[&[b""]]),
        (b"*01\r\n$04\r\nPING\r\n", &[&[b"PING"]]),
        (b"*0\r\n*1\r\n$1\r\na\r\n", &[&[b"a"]]),
        (b"\r\n\n\r\n*1\r\n$1\r\na\r\n\r\n", &[&[b"a"]]),
        (b"PING\r\n", &[&[b"PING"]]),
        (b"PING\n", &[&[b"PING"]]),
        (b"  \t \r\nPING  a\tb \r\n", &[&[b"PING", b"a", b"b"]]),
        (br#"ECHO "a b" 'c d'"#, &[]),
        (b"ECHO \"a b\" 'c d'\r\n", &[&[b"ECHO", b"a b", b"c d"]]),
        (
            b"ECHO \"\\x41\\n\\r\\t\\b\\a\\\"\\\\\\q\\xzz\"\r\n",
            &[&[b"ECHO", b"A\n\r\t\x08\x07\"\\qxzz"]],
        ),
        (b"ECHO 'a\\'b\\n'\r\n", &[&[b"ECHO", b"a'b\\n"]]),
        (b"ECHO \"\" ''\r\n", &[&[b"ECHO", b"", b""]]),
        (b"ECHO foo\"bar baz\"\r\n", &[&[b"ECHO", b"foobar baz"]]),
        (b"ECHO \xff\xfe\r\n", &[&[b"ECHO", b"\xff\xfe"]]),
        // Only an array begins with a type: anything else is an inline command.
        (b"$4\r\nPING\r\n", &[&[b"$4"], &[b"PING"]]),
        (b":1\r\n", &[&[b":1"]]),
    ];
    for (input, expected) in cases {
        let (commands, end) = decode_all(input);
        let expected: Vec<Vec<Vec<u8>>> = expected
            .iter()
            .map(|command| command.iter().map(|arg| arg.to_vec()).collect())
            .collect();
        let shown = input.escape_ascii();
        assert_eq!(commands, expected, "{shown}");
        let rest = if expected.is_empty() { input.len() } else { 0 };
        assert_eq!(end, Ok(rest), "{shown}");
    }
}

const ARRAY_LENGTH: &str = "invalid multibulk length: write 0 to 1024 arguments";
const BULK_LENGTH: &str = "invalid bulk length: write 0 to 65536 bytes";

#[test]
fn malformed_frames() {
    let cases: [(&[u8], &str); 36] = [
        (b"*x\r\n", ARRAY_LENGTH),
        (b"*\r\n", ARRAY_LENGTH),
        (b"*-1\r\n", ARRAY_LENGTH),
        (b"*+1\r\n", ARRAY_LENGTH),
        (b"*1\n", ARRAY_LENGTH),
        (b"*1\r1", ARRAY_LENGTH),
        (b"*1025\r\n", ARRAY_LENGTH),
        (b"*3000000000\r\n", ARRAY_LENGTH),
        (b"*99999999999999999999999", ARRAY_LENGTH),
        (b"*1\r\n$-1\r\n", BULK_LENGTH),
        (b"*1\r\n$\r\n", BULK_LENGTH),
        (b"*1\r\n$abc\r\n", BULK_LENGTH),
        (b"*1\r\n$1 \r\n", BULK_LENGTH),
        (b"*1\r\n$65537\r\n", BULK_LENGTH),
        (b"*1\r\n$536870912\r\n", BULK_LENGTH),
        (b"*1\r\n$4\r\nPINGxx", "expected CRLF after an argument"),
        (b"*1\r\n$3\r\nPING\r\n", "expected CRLF after an argument"),
        (b"*1\r\n+a\rb\r\n", "expected CRLF after an argument"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n\r\n", "expected '$', got '\\r'"),
        (b"*1\r\n\xff", "expected '$', got '\\xff'"),
        (
            b"*1\r\n*1\r\n$1\r\na\r\n",
            "an argument cannot be an aggregate ('*'), send a bulk string",
        ),
        (
            b"*1\r\n%1\r\n",
            "an argument cannot be an aggregate ('%'), send a bulk string",
        ),
        (
            b"*2\r\n$1\r\na\r\n_\r\n",
            "an argument of type '_' has no text, send a bulk string",
        ),
        (
            b"*1\r\n#t\r\n",
            "an argument of type '#' has no text, send a bulk string",
        ),
        (
            b"*1\r\n!5\r\nERR a\r\n",
            "an argument of type '!' has no text, send a bulk string",
        ),
        (b"*1\r\n:\r\n", "invalid argument of type ':'"),
        (b"*1\r\n:1a\r\n", "invalid argument of type ':'"),
        (b"*1\r\n(1.5\r\n", "invalid argument of type '('"),
        (b"*1\r\n,1e\r\n", "invalid argument of type ','"),
        (b"*1\r\n=3\r\ntxt\r\n", "invalid argument of type '='"),
        (b"*1\r\n=5\r\ntext!\r\n", "invalid argument of type '='"),
        (b"*1\r\n+a\nb\r\n", "invalid argument of type '+'"),
        (b"ECHO \"a\r\n", "unbalanced quotes in request"),
        (b"ECHO 'a'b\r\n", "unbalanced quotes in request"),
        (b"ECHO \"a\"\"b\"\r\n", "unbalanced quotes in request"),
    ];
    for (input, expected) in cases {
        let (commands, end) = decode_all(input);
        assert_eq!(commands.len(), 0, "{}", input.escape_ascii());
        let error = end.expect_err("these bytes are no frame");
        assert_eq!(
            error.to_string(),
            format!("Protocol error: {expected}"),
            "{}",
            input.escape_ascii()
        );
    }
}

#[test]
fn whoever_speaks_http_is_told() {
    for request in [
        "GET / HTTP/1.1\r\n",
        "POST /v1/acquire HTTP/1.1\r\n",
        "post x\r\n",
        "Host: localhost\r\n",
    ] {
        let (commands, end) = decode_all(request.as_bytes());
        assert!(commands.is_empty());
        assert_eq!(end, Err(FrameError::Http), "{request}");
    }
    let (commands, end) = decode_all(&frame(&[b"ECHO", b"GET", b"HTTP/1.1"]));
    assert_eq!((commands.len(), end), (1, Ok(0)), "a frame may say so");
}

/// At the first byte: the rest may be cut, and have no end of a line.
#[test]
fn whoever_speaks_tls_is_told() {
    let (commands, end) = decode_all(b"*1\r\n$4\r\nPING\r\n\x16");
    assert_eq!((commands.len(), end), (1, Err(FrameError::Tls)));
    let (commands, end) = decode_all(&frame(&[b"ECHO", b"\x16\x03\x01"]));
    assert_eq!((commands.len(), end), (1, Ok(0)), "a frame may say so");
}

/// A number that is too long is refused early, never collected.
#[test]
fn a_number_that_does_not_end_is_refused_early() {
    for head in ["*1\r\n:", "*1\r\n(", "*1\r\n,"] {
        let (_, end) = decode_all(format!("{head}{}", "1".repeat(65)).as_bytes());
        assert!(matches!(end, Err(FrameError::Malformed(_))), "{head}");
    }
}

fn small() -> FrameLimits {
    FrameLimits {
        max_args: 3,
        max_bulk: 20,
        max_line: 30,
        max_frame: 58,
    }
}

#[test]
fn limits_hold_to_the_byte() {
    let cases: [(Vec<u8>, Result<usize, FrameError>); 10] = [
        (frame(&[b"1", b"2", b"3"]), Ok(3)),
        (
            frame(&[b"1", b"2", b"3", b"4"]),
            Err(FrameError::ArrayLength(3)),
        ),
        (frame(&[&[b'x'; 20]]), Ok(1)),
        (frame(&[&[b'x'; 21]]), Err(FrameError::BulkLength(20))),
        // 4 for the array, 27 for each argument: 58 in all.
        (frame(&[&[b'x'; 20], &[b'x'; 20]]), Ok(2)),
        (
            frame(&[&[b'x'; 20], &[b'x'; 20], b"x"]),
            Err(FrameError::LongFrame(58)),
        ),
        (b"a b c\r\n".to_vec(), Ok(3)),
        (b"a b c d\r\n".to_vec(), Err(FrameError::ArrayLength(3))),
        ([&[b'x'; 30][..], b"\n"].concat(), Ok(1)),
        (
            [&[b'x'; 31][..], b"\n"].concat(),
            Err(FrameError::LongLine(30)),
        ),
    ];
    for (input, expected) in cases {
        let mut decoder = Decoder::new(small());
        let found = match decoder.decode(&input) {
            Ok(Decoded::Command { args, .. }) => Ok(args.len()),
            Ok(other) => panic!("{}: {other:?}", input.escape_ascii()),
            Err(error) => Err(error),
        };
        assert_eq!(found, expected, "{}", input.escape_ascii());
    }
}

#[test]
fn a_frame_one_byte_too_long_is_refused() {
    let limits = FrameLimits {
        max_frame: 57,
        ..small()
    };
    let input = frame(&[&[b'x'; 20], &[b'x'; 20]]);
    let end = Decoder::new(limits).decode(&input).map(|_| ());
    assert_eq!(end, Err(FrameError::LongFrame(57)));
}

/// Redis's own words come first, for clients that look for them, then what to write instead.
#[test]
fn a_bound_that_is_passed_is_said() {
    let long = "x".repeat(65_537);
    for (input, expected) in [
        (
            long.into_bytes(),
            "too big inline request: write at most 65536 bytes in a line",
        ),
        (
            frame(&[&[b'x'; 65_536][..]; 4]),
            "too big request: write at most 262144 bytes, all arguments together",
        ),
    ] {
        let (commands, end) = decode_all(&input);
        let error = end.expect_err("these bytes pass a bound").to_string();
        assert_eq!(error, format!("Protocol error: {expected}"));
        assert_eq!(commands.len(), 0);
    }
}

/// A length is accepted only within the bounds, before any bytes are waited for.
#[test]
fn what_cannot_fit_is_refused_before_it_arrives() {
    let mut decoder = Decoder::new(small());
    let announced = b"*3\r\n$20\r\nxxxxxxxxxxxxxxxxxxxx\r\n$20\r\nxxxxxxxxxxxxxxxxxxxx\r\n$20\r\n";
    assert_eq!(
        decoder.decode(announced).map(|_| ()),
        Err(FrameError::LongFrame(58))
    );
    let line = [b'x'; 31];
    assert_eq!(
        decoder.decode(&line).map(|_| ()),
        Err(FrameError::LongLine(30))
    );
}

/// Many short arguments exceed the frame's bound as well, although each is within its own.
#[test]
fn a_frame_that_goes_on_for_ever_ends() {
    let limits = FrameLimits {
        max_args: 1_000,
        ..small()
    };
    let mut decoder = Decoder::new(limits);
    let mut input = b"*1000\r\n".to_vec();
    let end = loop {
        input.extend_from_slice(b":1\r\n");
        match decoder.decode(&input) {
            Ok(Decoded::Incomplete { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(end, FrameError::LongFrame(58));
    assert!(input.len() <= small().max_frame + 4);
}

#[test]
fn the_hint_is_what_an_argument_lacks() {
    let mut decoder = Decoder::new(FrameLimits::default());
    for (input, expected) in [
        (&b""[..], 1),
        (b"*", 1),
        (b"*1\r\n", 1),
        (b"*1\r\n$10\r\n", 12),
        (b"*1\r\n$10\r\n12345", 7),
        (b"*1\r\n$10\r\n1234567890", 2),
        (b"*1\r\n$10\r\n1234567890\r", 1),
    ] {
        match decoder.decode(input).unwrap() {
            Decoded::Incomplete { needed } => assert_eq!(needed, expected),
            other => panic!("{other:?}"),
        }
    }
    match decoder.decode(b"*1\r\n$10\r\n1234567890\r\nrest").unwrap() {
        Decoded::Command { args, length } => {
            assert_eq!(owned(args), [b"1234567890"]);
            assert_eq!(length, 21);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn arguments_are_looked_at_in_several_ways() {
    let input = frame(&[b"a", b"b", b"c"]);
    let mut decoder = Decoder::new(FrameLimits::default());
    let Decoded::Command { args, .. } = decoder.decode(&input).unwrap() else {
        panic!("a whole frame");
    };
    assert_eq!(args.len(), 3);
    assert!(!args.is_empty());
    assert_eq!(args.get(2), Some(&b"c"[..]));
    assert_eq!(args.get(3), None);
    assert_eq!(owned(args.skip(1)), [b"b", b"c"]);
    assert!(args.skip(3).is_empty());
    assert!(args.skip(4).is_empty());
    assert_eq!(args.iter().size_hint(), (3, Some(3)));
}
