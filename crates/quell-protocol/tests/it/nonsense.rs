//! Any bytes: nothing panics, nothing is allocated beyond the limits, and what was accepted was
//! there.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use quell_core::query_bounds::{MAX_ENTRIES, MAX_VALUE_BYTES};
use quell_protocol::http::{
    AuthorizeMap, VerdictBody, authorize, encode_query, find_question, parse_query,
};
use quell_protocol::resp::{Command, Decoded, Decoder, Encoder, FrameLimits, Protocol};

use crate::support::frame;

fn limits() -> FrameLimits {
    FrameLimits {
        max_args: 8,
        max_bulk: 64,
        max_line: 64,
        max_frame: 256,
    }
}

/// Bytes that look like frames: pieces of the protocol in any order.
fn almost_frames() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => (0usize..12).prop_map(|n| format!("*{n}\r\n").into_bytes()),
        4 => vec(any::<u8>(), 0..12).prop_map(|b| {
            [format!("${}\r\n", b.len()).as_bytes(), &b, b"\r\n"].concat()
        }),
        2 => any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
        2 => "[$*:+=,(#_%~>|!-][0-9]{0,3}(\r\n)?".prop_map(String::into_bytes),
        2 => "(PING|ECHO|HELLO|CL\\.THROTTLE|QUELL\\.PEEK|CLIENT|COMMAND)( [a-z0-9\"']{0,4}){0,5}(\r)?\n"
            .prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..16),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Reads everything through a connection's buffer, in pieces of `size` bytes, and checks what every
/// step promises. Returns the commands.
fn run(input: &[u8], size: usize) -> Vec<Vec<Vec<u8>>> {
    let limits = limits();
    let mut decoder = Decoder::new(limits.clone());
    let mut commands = Vec::new();
    let mut start = 0;
    let mut end = 0;
    loop {
        match decoder.decode(&input[start..end]) {
            Ok(Decoded::Command { args, length }) => {
                assert!(length > 0 && start + length <= end);
                assert!((1..=limits.max_args).contains(&args.len()));
                let _ = Command::parse(args);
                commands.push(args.iter().map(<[u8]>::to_vec).collect());
                start += length;
            }
            Ok(Decoded::Nothing { length }) => {
                assert!(length > 0 && start + length <= end);
                start += length;
            }
            Ok(Decoded::Incomplete { needed }) => {
                assert!(needed > 0);
                assert!(end - start + needed <= limits.max_frame);
                if end == input.len() {
                    return commands;
                }
                end = input.len().min(end + size);
            }
            Err(error) => {
                assert!(error.to_string().starts_with("Protocol error: "));
                return commands;
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(input in vec(any::<u8>(), 0..600)) {
        run(&input, 600);
    }

    #[test]
    fn pieces_make_no_difference(input in almost_frames(), size in 1usize..20) {
        prop_assert_eq!(run(&input, size), run(&input, input.len().max(1)));
    }

    #[test]
    fn what_was_sent_is_what_arrives(
        sent in vec(vec(vec(any::<u8>(), 0..20), 1..8), 0..6),
        size in 1usize..40,
    ) {
        let mut input = Vec::new();
        for command in &sent {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            input.extend(frame(&words));
        }
        prop_assert_eq!(run(&input, size), sent);
    }

    #[test]
    fn an_error_reply_is_one_line(input in vec(vec(any::<u8>(), 0..40), 1..8)) {
        let words: Vec<&[u8]> = input.iter().map(Vec::as_slice).collect();
        let input = frame(&words);
        let mut decoder = Decoder::new(FrameLimits::default());
        if let Ok(Decoded::Command { args, .. }) = decoder.decode(&input)
            && let Err(error) = Command::parse(args)
        {
            let mut out = Vec::new();
            error.write(&mut Encoder::new(&mut out, Protocol::Resp2));
            prop_assert!(out.ends_with(b"\r\n"));
            prop_assert_eq!(out.iter().filter(|byte| matches!(byte, b'\r' | b'\n')).count(), 2);
            prop_assert!(out.len() < 700, "{} bytes", out.len());
        }
    }

    #[test]
    fn any_body_is_survived(body in vec(any::<u8>(), 0..300)) {
        let _ = parse_query(&body);
    }

    #[test]
    fn almost_queries_are_survived(body in "[{\\[]{0,3}(\"(domain|entries|cost|descriptors|a)\"[:,]|[{}\\[\\],:]|\"[a-z]{0,3}\"|-?[0-9]{1,3}|null|true){0,20}") {
        let _ = parse_query(body.as_bytes());
    }

    #[test]
    fn queries_come_back_as_they_were(
        domain in "[a-z\"\\\\é]{1,8}",
        descriptors in vec((vec(("\\PC{1,6}", "\\PC{0,9}"), 0..4), 1u64..), 1..4),
    ) {
        use quell_core::cost::Cost;
        use quell_core::descriptor::{Descriptor, Query};
        let mut made = Vec::new();
        for (entries, cost) in &descriptors {
            let mut descriptor = Descriptor::new();
            for (name, value) in entries {
                if descriptor.get(name).is_none() {
                    descriptor.push(name.as_str(), value.as_str());
                }
            }
            descriptor.cost = Cost::new(*cost).unwrap();
            made.push(descriptor);
        }
        let query = Query::with_descriptors(domain.as_str(), made);
        let body = encode_query(&query).unwrap();
        prop_assert_eq!(parse_query(body.as_bytes()).unwrap(), query);
    }

    #[test]
    fn any_headers_are_survived(
        headers in vec(("(x-original-(method|uri)|x-forwarded-(for|uri)|x-real-ip|x-quell-entry-[a-z]{0,2}|host)", vec(any::<u8>(), 0..40)), 0..80),
    ) {
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let map = AuthorizeMap::default();
        if let Ok(query) = authorize("shop", headers, &map) {
            let entries = query.descriptors()[0].entries();
            prop_assert!(entries.len() <= MAX_ENTRIES);
            prop_assert!(entries.iter().all(|entry| entry.value.len() <= MAX_VALUE_BYTES));
        }
    }

    #[test]
    fn any_verdict_text_is_survived(body in vec(any::<u8>(), 0..200)) {
        let _ = serde_json::from_slice::<VerdictBody<'_>>(&body);
    }
}

proptest! {
    /// A request found in an input made of pieces lies within the input, and is found again when
    /// more bytes follow.
    #[test]
    fn a_question_lies_within_the_input(
        pieces in vec(proptest::sample::select(&[
            "POST /v1/acquire HTTP/1.1\r\n", "POST /v1/peek HTTP/1.1\r\n", "Host: a\r\n",
            "Content-Type: application/json\r\n", "Content-Length: 2\r\n", "\r\n", "{}", "\r",
            "Content-Length: 9999999\r\n", "Transfer-Encoding: chunked\r\n", ":", "\u{7f}", "é",
        ][..]), 0..9),
        first in any::<bool>(),
    ) {
        let begin = if first { "POST /v1/peek HTTP/1.1\r\nContent-Length: 2\r\n" } else { "" };
        let input = format!("{begin}{}", pieces.concat());
        if let Some(question) = find_question(input.as_bytes()) {
            prop_assert!(question.length <= input.len());
            // A body may end within a letter.
            let found = &input.as_bytes()[..question.length];
            prop_assert!(found.ends_with(question.body));
            prop_assert_eq!(question.body.len(), 2);
            prop_assert!(!String::from_utf8_lossy(found).contains("chunked"));
        }
    }
}
