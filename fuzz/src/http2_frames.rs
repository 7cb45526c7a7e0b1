//! Frames of HTTP/2: however the bytes of a connection are cut, the same frame is the first that is not paid
//! for, and it is the one that another reader of frames finds.

use std::time::Instant;

use quell_protocol::callers::FrameMeter;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Tries one input: how long the pieces are, how often the frames are repeated, whether a preface comes first,
/// and the frames.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(input: &[u8]) {
    let Some(([piece, times, preface], frames)) = input.split_first_chunk() else {
        return;
    };
    let begin = if preface & 1 == 0 { PREFACE } else { b"" };
    let bytes = [begin, &frames.repeat(usize::from(*times) % 64 + 1)].concat();
    let expected = unpaid(&bytes);
    for length in [bytes.len().max(1), usize::from(*piece) + 1] {
        let now = Instant::now();
        let mut meter = FrameMeter::new(now);
        let found = bytes
            .chunks(length)
            .position(|piece| !meter.read(piece, || now));
        assert_eq!(found, expected.map(|at| at / length), "pieces of {length}");
    }
}

/// Where the head of the first frame ends that is not paid for.
fn unpaid(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes.strip_prefix(PREFACE)?;
    let mut credit = 1_000_u32;
    while let Some((head, payload)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        match head[3] {
            0 | 9 => {}
            1 => credit = (credit + 32).min(1_000),
            _ if credit == 0 => return Some(bytes.len() - payload.len() - 1),
            _ => credit -= 1,
        }
        rest = payload.get(usize::try_from(length).ok()?..)?;
    }
    None
}
