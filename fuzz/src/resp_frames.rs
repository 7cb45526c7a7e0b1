//! RESP: any bytes, in any pieces, give the same commands and the same error, and never take more
//! memory than a frame may have. A decoded command can be parsed, answered, and encoded again.

use std::time::Duration;

use quell_protocol::resp::{
    Args, Client, Command, ConnectionFacts, Decoded, Decoder, Encoder, FrameError, FrameLimits,
    Protocol, ServerFacts,
};

/// Commands as plain bytes, and the error that ended them.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<FrameError>);

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(data: &[u8]) {
    let Some(([limits, piece], input)) = data.split_first_chunk() else {
        return;
    };
    let limits = if limits & 1 == 0 {
        FrameLimits::default()
    } else {
        narrow()
    };
    let piece = usize::from(*piece) % 40 + 1;
    let whole = decode(&limits, input.chunks(input.len().max(1)));
    let pieces = decode(&limits, input.chunks(piece));
    assert_eq!(whole, pieces, "cut every {piece} bytes");
    for command in &whole.0 {
        survives_encoding(command);
    }
}

/// Limits so small that a fuzzer can exceed each of them.
fn narrow() -> FrameLimits {
    FrameLimits {
        max_args: 6,
        max_bulk: 32,
        max_line: 48,
        max_frame: 96,
    }
}

fn decode<'a>(limits: &FrameLimits, pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(limits.clone());
    let mut buffer: Vec<u8> = Vec::new();
    let mut commands = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let length = match decoder.decode(&buffer) {
                Ok(Decoded::Command { args, length }) => {
                    answer(args);
                    commands.push(args.iter().map(<[u8]>::to_vec).collect());
                    length
                }
                Ok(Decoded::Nothing { length }) => length,
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > 0, "waits for nothing");
                    let most = limits.max_frame.max(limits.max_line) + 2;
                    assert!(buffer.len() <= most, "{} bytes are kept", buffer.len());
                    break;
                }
                Err(error) => return (commands, Some(error)),
            };
            assert!(length > 0 && length <= buffer.len(), "drops {length} bytes");
            buffer.drain(..length);
        }
    }
    (commands, None)
}

/// Parses, and writes the replies that need no decision.
fn answer(args: Args<'_>) {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, protocol);
        match Command::parse(args) {
            Ok(Command::Throttle(throttle)) => {
                let limit = throttle.limit.build();
                assert!(limit.is_ok(), "{throttle:?} was parsed and is impossible");
                continue;
            }
            Ok(Command::Table(request)) => request.write_reply(&mut encoder),
            Ok(Command::Info(sections)) => SERVER.write_reply(sections, &mut encoder),
            Ok(Command::Client(Client::SetName(name))) => encoder.verbatim(&line(name, protocol)),
            Ok(Command::Ping(Some(message)) | Command::Echo(message)) => encoder.bulk(message),
            Ok(_) => encoder.simple("OK"),
            Err(error) => error.write(&mut encoder),
        }
        assert!(out.ends_with(b"\r\n"), "a reply without an end");
    }
}

/// A command's words, written as clients write them, decode to the same command.
fn survives_encoding(command: &[Vec<u8>]) {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, Protocol::Resp2);
    encoder.array(command.len());
    for word in command {
        encoder.bulk(word);
    }
    // Headers may make the frame longer than the original one.
    let limits = FrameLimits {
        max_frame: out.len(),
        ..FrameLimits::default()
    };
    match Decoder::new(limits).decode(&out) {
        Ok(Decoded::Command { args, length }) => {
            assert_eq!(length, out.len());
            assert!(args.iter().eq(command.iter().map(Vec::as_slice)));
        }
        other => panic!("{command:?} is {other:?} when it is written again"),
    }
}

fn line(name: &[u8], protocol: Protocol) -> String {
    let mut line = String::new();
    let facts = ConnectionFacts {
        id: 1,
        remote_address: "192.0.2.1:50000",
        local_address: "192.0.2.2:6380",
        name,
        library_name: b"",
        library_version: b"",
        age: Duration::ZERO,
        protocol,
    };
    facts.write_line(&mut line);
    assert_eq!(line.lines().count(), 1, "{line:?} is more than one line");
    line
}

const SERVER: ServerFacts<'static> = ServerFacts {
    version: "1.2.3",
    process_id: 1,
    port: 6380,
    uptime: Duration::ZERO,
    connections: 1,
    connections_received: 1,
    commands_processed: 1,
    keys: 1,
};
