//! Frames that arrive in pieces: the same commands wherever the bytes are cut.

use quell_protocol::resp::{Decoded, Decoder, FrameError, FrameLimits};

use crate::support::{decode_all, frame, owned, words};

/// A pipeline with every form of a command.
fn pipeline() -> Vec<u8> {
    let mut input = words("CL.THROTTLE user:1 15 30 60 1");
    input.extend_from_slice(b"\r\n");
    input.extend(frame(&[b"ECHO", b"a\r\nb"]));
    input.extend_from_slice(b"*0\r\n");
    input.extend_from_slice(b"*5\r\n+CL.THROTTLE\r\n$1\r\nk\r\n:15\r\n(30\r\n,60\r\n");
    input.extend_from_slice(b"PING \"a b\"\r\n \r\nPING\n");
    input.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n=7\r\ntxt:abc\r\n");
    input.extend(words("QUELL.ACQUIRE shop COST 3 path /login"));
    input
}

/// Feeds `pieces` one after the other to a connection's buffer.
fn feed<'a>(
    limits: FrameLimits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Vec<Vec<u8>>>, FrameError> {
    let mut decoder = Decoder::new(limits.clone());
    let mut buffer: Vec<u8> = Vec::new();
    let mut commands = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let dropped = match decoder.decode(&buffer)? {
                Decoded::Command { args, length } => {
                    commands.push(owned(args));
                    length
                }
                Decoded::Nothing { length } => length,
                Decoded::Incomplete { needed } => {
                    assert!(needed > 0);
                    assert!(buffer.len() + needed <= limits.max_frame.max(buffer.len() + 1));
                    break;
                }
            };
            buffer.drain(..dropped);
        }
    }
    assert!(buffer.is_empty(), "left: {}", buffer.escape_ascii());
    Ok(commands)
}

#[test]
fn cut_in_two_anywhere() {
    let input = pipeline();
    let (whole, end) = decode_all(&input);
    assert_eq!((whole.len(), end), (7, Ok(0)));
    for cut in 0..=input.len() {
        let (first, second) = input.split_at(cut);
        let commands = feed(FrameLimits::default(), [first, second]);
        assert_eq!(commands.as_ref(), Ok(&whole), "cut at {cut}");
    }
}

#[test]
fn byte_by_byte() {
    let input = pipeline();
    let (whole, _) = decode_all(&input);
    for size in [1, 2, 3, 7] {
        let commands = feed(FrameLimits::default(), input.chunks(size));
        assert_eq!(commands.as_ref(), Ok(&whole), "{size} bytes at a time");
    }
}

/// A line that goes beyond the bound of a frame is the same error, whether its end has arrived or not.
#[test]
fn a_line_beyond_the_frame() {
    let limits = FrameLimits {
        max_frame: 40,
        ..FrameLimits::default()
    };
    for input in [
        format!("*2\r\n+{}\r\n+b\r\n", "a".repeat(40)),
        format!("*2\r\n+{}\r\n:{}\r\n", "a".repeat(20), "1".repeat(80)),
        format!("{}\r\n", "a".repeat(40)),
    ] {
        for size in 1..=input.len() {
            let commands = feed(limits.clone(), input.as_bytes().chunks(size));
            let expected = Err(FrameError::LongFrame(40));
            assert_eq!(commands, expected, "{input:?}, {size} bytes at a time");
        }
    }
}

/// An error is the same error, however its bytes arrive.
#[test]
fn errors_byte_by_byte() {
    for input in [
        &b"*1\r\n$4\r\nPINGxx"[..],
        b"*2\r\n+a\r\n_\r\n",
        b"ECHO 'a\r\n",
        b"*1\r\n:1a\r\n",
        b"*9999999999999",
    ] {
        let (_, whole) = decode_all(input);
        let pieces = feed(FrameLimits::default(), input.chunks(1));
        assert_eq!(
            pieces.map(|_| ()),
            whole.map(|_| ()),
            "{}",
            input.escape_ascii()
        );
    }
}

/// 256 KiB in single bytes: if the frame were read again for each of them, this would take 10^10
/// steps.
#[test]
fn single_bytes_are_not_read_again_and_again() {
    let limits = FrameLimits {
        max_line: 128 * 1_024,
        max_args: 40_000,
        ..FrameLimits::default()
    };
    let line = [&[b'x'; 100_000][..], b"\r\n"].concat();
    let simple = [b"*1\r\n+", &line[..]].concat();
    let many = {
        let mut many = b"*40000\r\n".to_vec();
        many.extend(b":1\r\n".repeat(40_000));
        many
    };
    for (input, args, bytes) in [
        (line, 1, 100_000),
        (simple, 1, 100_000),
        (many, 40_000, 40_000),
    ] {
        let mut decoder = Decoder::new(limits.clone());
        for end in 0..input.len() {
            let piece = decoder.decode(&input[..end]).unwrap();
            assert!(matches!(piece, Decoded::Incomplete { .. }), "{end}");
        }
        match decoder.decode(&input).unwrap() {
            Decoded::Command {
                args: found,
                length,
            } => {
                assert_eq!(length, input.len());
                assert_eq!(found.len(), args);
                assert_eq!(found.iter().map(<[u8]>::len).sum::<usize>(), bytes);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// After an error the same decoder starts anew: nothing of the broken frame is left in it.
#[test]
fn an_error_leaves_nothing_behind() {
    let mut decoder = Decoder::new(FrameLimits::default());
    assert!(decoder.decode(b"*2\r\n$1\r\na\r\n_\r\n").is_err());
    let input = frame(&[b"PING"]);
    match decoder.decode(&input).unwrap() {
        Decoded::Command { args, length } => {
            assert_eq!(owned(args), [b"PING"]);
            assert_eq!(length, input.len());
        }
        other => panic!("{other:?}"),
    }
}

/// A caller that breaks the contract and takes bytes away gets an answer, not a crash.
#[test]
fn a_shrinking_input_is_survived() {
    let mut decoder = Decoder::new(FrameLimits::default());
    let input = frame(&[b"ECHO", b"hello"]);
    for end in [input.len() - 1, 3, 0, input.len() - 5] {
        let piece = decoder.decode(&input[..end]).unwrap();
        assert!(matches!(piece, Decoded::Incomplete { .. }), "{end}");
    }
}

/// A connection that is silent after a long command does not keep the memory for it.
#[test]
fn a_long_command_leaves_no_room_behind() {
    let mut decoder = Decoder::new(FrameLimits::default());
    let many = frame(&[b"ECHO".as_slice(); 1_000]);
    let long = [b"ECHO ".as_slice(), &[b'x'; 60_000], b"\r\n"].concat();
    for input in [many, long] {
        assert!(matches!(
            decoder.decode(&input),
            Ok(Decoded::Command { .. })
        ));
        assert!(decoder.held() > 10_000);
        assert!(matches!(
            decoder.decode(b""),
            Ok(Decoded::Incomplete { .. })
        ));
        assert!(decoder.held() <= 2_048, "{}", decoder.held());
    }
}
