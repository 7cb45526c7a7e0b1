//! Frames: a bound on what an HTTP/2 client sends beside its requests.
//!
//! h2 answers every PING and every SETTINGS, and reads past any number of frames that ask for nothing. None
//! of them takes memory, but all take time. So each of them uses up credit, which time, requests and answers
//! bring: a sound client sends a few for each of its requests, and one now and then.

use std::time::{Duration, Instant};

/// First bytes of every connection over HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame's head (RFC 9113, 4.1).
const HEAD: u8 = 9;

/// Kinds of frames that h2 itself bounds (RFC 9113, 6): a request, and what belongs to it.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// The most credit there can be, which a connection begins with: one frame for each.
const MAX_CREDIT: u32 = 1_000;

/// Time that one more credit takes: a hundred a second.
const INTERVAL: Duration = Duration::from_millis(10);

/// Credit that a request brings: it may be cancelled, and each piece of its answer may be acknowledged by
/// two windows and a PING.
const FOR_REQUEST: u32 = 32;

/// Bytes of answers that bring one more. An answer to a PING has 17.
const ANSWER: usize = 2 * 1_024;

/// Follows the frames of a connection.
#[derive(Debug)]
pub struct FrameMeter {
    position: Position,
    credit: u32,
    /// Instant until which time has brought credit.
    filled: Instant,
    /// Bytes of answers that brought none yet.
    sent: usize,
}

/// Position of the next byte in the stream of frames.
#[derive(Debug)]
enum Position {
    /// To the preface, of which this many bytes came.
    Preface(usize),
    /// To a frame's head, of which this many bytes came.
    Head { read: u8, length: u32, kind: u8 },
    /// To a frame's payload, of which this many bytes are left.
    Payload(usize),
    /// The connection does not speak HTTP/2.
    Other,
}

const NEXT: Position = Position::Head {
    read: 0,
    length: 0,
    kind: 0,
};

impl FrameMeter {
    /// Begins with the first byte of a connection.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            position: Position::Preface(0),
            credit: MAX_CREDIT,
            filled: now,
            sent: 0,
        }
    }

    /// Notes bytes that the client sent; `now` is only asked for if frames need credit. Returns whether there
    /// was credit for all of them.
    pub fn read(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) -> bool {
        let mut is_paid = true;
        while let [first, rest @ ..] = bytes {
            match &mut self.position {
                Position::Preface(read) => {
                    if PREFACE.get(*read) != Some(first) {
                        self.position = Position::Other;
                        return is_paid;
                    }
                    *read += 1;
                    if *read == PREFACE.len() {
                        self.position = NEXT;
                    }
                    bytes = rest;
                }
                Position::Head { read, length, kind } => {
                    match *read {
                        0..=2 => *length = *length << 8 | u32::from(*first),
                        3 => *kind = *first,
                        _ => {}
                    }
                    *read += 1;
                    if *read == HEAD {
                        let (kind, length) = (*kind, *length as usize);
                        self.position = match length {
                            0 => NEXT,
                            length => Position::Payload(length),
                        };
                        is_paid &= self.count(kind, &now);
                    }
                    bytes = rest;
                }
                Position::Payload(left) => {
                    let skipped = bytes.len().min(*left);
                    *left -= skipped;
                    if *left == 0 {
                        self.position = NEXT;
                    }
                    bytes = bytes.get(skipped..).unwrap_or_default();
                }
                Position::Other => return is_paid,
            }
        }
        is_paid
    }

    /// Notes `count` bytes that were sent to the client.
    pub fn wrote(&mut self, count: usize) {
        self.sent += count;
        let pieces = self.sent / ANSWER;
        self.sent %= ANSWER;
        self.add(pieces.try_into().unwrap_or(MAX_CREDIT));
    }

    /// Counts a frame. Returns whether there was credit for it.
    fn count(&mut self, kind: u8, now: impl Fn() -> Instant) -> bool {
        match kind {
            HEADERS => self.add(FOR_REQUEST),
            DATA | CONTINUATION => {}
            _ => {
                self.fill(now());
                let Some(left) = self.credit.checked_sub(1) else {
                    return false;
                };
                self.credit = left;
            }
        }
        true
    }

    fn add(&mut self, credit: u32) {
        self.credit = self.credit.saturating_add(credit).min(MAX_CREDIT);
    }

    /// Adds what time has brought.
    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let intervals = passed.as_nanos() / INTERVAL.as_nanos();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        if intervals > 0 {
            self.filled += INTERVAL * intervals;
            self.add(intervals);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    fn opened(now: Instant) -> FrameMeter {
        let mut meter = FrameMeter::new(now);
        assert!(meter.read(PREFACE, || now));
        meter
    }

    /// Number of PINGs that there is credit for.
    fn pings(meter: &mut FrameMeter, now: Instant) -> u32 {
        let ping = frame(PING, &[7; 8]);
        (0..).find(|_| !meter.read(&ping, || now)).unwrap()
    }

    #[test]
    fn time_requests_and_answers_bring_credit() {
        let begin = Instant::now();
        let mut meter = opened(begin);
        for (at, count, why) in [
            (0, 1_000, "at once"),
            (9, 0, "a part of an interval brings nothing"),
            (25, 2, "two intervals"),
            (30, 1, "no part of an interval is lost"),
            (1_000_000_000, 1_000, "no more than at the beginning"),
        ] {
            let now = begin + Duration::from_millis(at);
            assert_eq!(pings(&mut meter, now), count, "{why}");
        }
        let now = begin + Duration::from_millis(1_000_000_000);
        assert!(meter.read(&frame(HEADERS, b"x"), || now));
        assert_eq!(pings(&mut meter, now), 32);
        meter.wrote(2_047);
        assert_eq!(pings(&mut meter, now), 0);
        meter.wrote(2_049);
        assert_eq!(pings(&mut meter, now), 2);
        assert_eq!(pings(&mut meter, begin), 0, "a clock that steps back");
    }

    #[test]
    fn frames_of_a_request_and_a_few_beside_it_are_never_too_many() {
        let now = Instant::now();
        let mut meter = opened(now);
        let window = frame(8, &[0, 0, 0, 1]);
        let begin = [frame(HEADERS, &[0x41; 100]), frame(CONTINUATION, b"y")].concat();
        let request = [begin, frame(DATA, b"").repeat(9), window.repeat(32)].concat();
        assert!(meter.read(&request.repeat(10_000), || now));
    }

    /// However the bytes come, the frames are the same.
    #[test]
    fn pieces_of_any_length_are_followed() {
        let now = Instant::now();
        let frames = [
            frame(SETTINGS, b""),
            frame(DATA, &frame(PING, &[0; 8]).repeat(9)),
            frame(0xfa, &[6; 300]),
            frame(PING, &[6; 8]),
        ];
        let bytes = [PREFACE, &frames.concat()].concat();
        for length in 1..bytes.len() {
            let mut meter = FrameMeter::new(now);
            assert!(bytes.chunks(length).all(|piece| meter.read(piece, || now)));
            assert_eq!(meter.credit, 997, "pieces of {length}");
        }
    }

    #[test]
    fn other_connections_have_no_frames() {
        let now = Instant::now();
        let mut meter = FrameMeter::new(now);
        let bytes = [
            b"PRI * HTTP/1.1\r\n\r\n",
            &*frame(PING, &[7; 8]).repeat(2_000),
        ]
        .concat();
        assert!(bytes.chunks(5).all(|piece| meter.read(piece, || now)));
    }
}
