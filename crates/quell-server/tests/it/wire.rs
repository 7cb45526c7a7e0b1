//! RESP over raw sockets.

use std::io::{Read, Write};

use crate::harness::{Fixture, SHOP, connect, eventually, expect};

#[test]
fn throttle_answers_as_redis_cell_does() {
    let server = Fixture::with_clock("", "");
    let ask = "CL.THROTTLE k 1 1 60\r\n";
    let reply = server.resp_exchange(format!("PING\r\n{ask}{ask}{ask}QUIT\r\nPING\r\n").as_bytes());
    assert_eq!(
        reply,
        "+PONG\r\n\
         *5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n\
         *5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n\
         *5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n\
         +OK\r\n"
    );
    let labels = "{domain=\"\",rule=\"cl.throttle\",outcome=\"deny\"}";
    let denied = server.metric(&format!("quell_decisions_total{labels}"));
    assert_eq!(denied.as_deref(), Some("1"));
}

#[test]
fn ten_thousand_commands_in_one_go_are_answered_in_order() {
    let server = Fixture::with_clock("", "");
    let mut commands = Vec::new();
    for number in 0..10_000 {
        write!(commands, "*2\r\n$4\r\nECHO\r\n$5\r\n{number:05}\r\n").unwrap();
    }
    let reply = server.resp_exchange(&commands);
    let expected: String = (0..10_000).map(|n| format!("$5\r\n{n:05}\r\n")).collect();
    assert_eq!(reply, expected);
    assert_eq!(
        server.metric("quell_resp_commands_total").as_deref(),
        Some("10000")
    );
}

/// Calls that differ only in their key take a faster path, and get the same answers.
#[test]
fn calls_alike_and_others_in_between_are_answered_in_order() {
    let server = Fixture::with_clock("", "");
    let ask = |key: &str, burst: &str| {
        let (length, burst_length) = (key.len(), burst.len());
        format!(
            "*5\r\n$11\r\nCL.THROTTLE\r\n${length}\r\n{key}\r\n${burst_length}\r\n{burst}\r\n$1\r\n1\r\n$2\r\n60\r\n"
        )
    };
    let allowed = |limit: u64, left: u64| {
        let reset = 60 * (limit - left);
        format!("*5\r\n:0\r\n:{limit}\r\n:{left}\r\n:-1\r\n:{reset}\r\n")
    };
    let mut commands = String::new();
    let mut expected = String::new();
    for round in 0..200 {
        for key in ["a", "user:12"] {
            commands += &ask(key, "1999");
            expected += &allowed(2_000, 1_999 - 2 * round);
        }
        commands += &ask("other", "299");
        expected += &allowed(300, 299 - round);
        commands += "PING\r\nMULTI\r\n";
        expected += "+PONG\r\n+OK\r\n";
        for key in ["a", "user:12"] {
            commands += &ask(key, "1999");
            expected += "+QUEUED\r\n";
        }
        commands += "EXEC\r\n";
        expected += &format!("*2\r\n{}", allowed(2_000, 1_998 - 2 * round).repeat(2));
    }
    assert_eq!(server.resp_exchange(commands.as_bytes()), expected);
}

/// A client that invents limits gets coarser ones; no client gets an error, and none waits for a
/// search through all limits.
#[test]
fn more_limits_than_are_kept_apart_are_answered_all_the_same() {
    let server = Fixture::with_clock("", "");
    let mut commands = Vec::new();
    for number in 0..100_000 {
        write!(commands, "CL.THROTTLE k{number} {number} 1 1\r\n").unwrap();
    }
    let reply = server.resp_exchange(&commands);
    assert_eq!(reply.matches("*5\r\n:0\r\n").count(), 100_000);
    assert_eq!(
        reply.matches('-').count(),
        100_000,
        "retry_after, and no error"
    );
    // Five at once and one in 12 s become four and one in 2^34 ns.
    let innocent = server.resp_exchange(b"CL.THROTTLE login 4 5 60\r\n");
    assert_eq!(innocent, "*5\r\n:0\r\n:4\r\n:3\r\n:-1\r\n:18\r\n");
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let server = Fixture::with_clock("", "");
    let mut stream = connect(server.resp());
    stream.set_nodelay(true).unwrap();
    for byte in b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n:0\r\n:1\r\n$2\r\n60\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    expect(&mut stream, "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
}

/// On a running clock: the first charge of a key reads the clock again, and later ones continue from
/// there. Not inline: only calls in the same frame as the previous one share a reading.
#[test]
fn a_pipeline_on_a_new_key_loses_no_unit() {
    let server = Fixture::new("", "");
    for key in 100..200 {
        let ask = format!(
            "*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\n{key}\r\n$1\r\n4\r\n$1\r\n1\r\n$4\r\n3600\r\n"
        );
        let ask = ask.repeat(6);
        let reply = server.resp_exchange(ask.as_bytes());
        let left: Vec<&str> = reply.split("*5\r\n").skip(1).collect();
        let expected: Vec<String> = (0..6)
            .map(|call| {
                let (is_limited, left) = (u32::from(call == 5), 4_u32.saturating_sub(call));
                let (wait, rest) = (
                    if call == 5 { 3_600 } else { -1 },
                    3_600 * (call + 1).min(5),
                );
                format!(":{is_limited}\r\n:5\r\n:{left}\r\n:{wait}\r\n:{rest}\r\n")
            })
            .collect();
        assert_eq!(left, expected, "key {key}");
    }
}

#[test]
fn any_bytes_are_a_key() {
    let server = Fixture::with_clock("", "");
    let ask = b"*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\n\xff\r\n\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n60\r\n";
    let reply = server.resp_exchange(&[&ask[..], &ask[..]].concat());
    assert!(reply.starts_with("*5\r\n:0"), "{reply}");
    assert!(reply.contains("*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n"), "{reply}");
}

#[test]
fn rules_answer_in_both_protocols() {
    let server = Fixture::with_clock(SHOP, "");
    let ask = "QUELL.PEEK shop path /strict user a\r\n";
    let reply = server.resp_exchange(format!("{ask}HELLO 3\r\n{ask}").as_bytes());
    assert!(
        reply.starts_with("*22\r\n$7\r\nallowed\r\n:1\r\n$7\r\nbinding\r\n$6\r\nstrict\r\n"),
        "{reply}"
    );
    assert!(
        reply.contains("%7\r\n$6\r\nserver\r\n$5\r\nquell\r\n"),
        "{reply}"
    );
    assert!(reply.contains("%11\r\n$7\r\nallowed\r\n#t\r\n"), "{reply}");
    let reply =
        server.resp_exchange(b"QUELL.ACQUIRE nosuch a b\r\nQUELL.ACQUIRE shop COST 0\r\nPING\r\n");
    assert!(
        reply.starts_with("-ERR no rules for domain \"nosuch\""),
        "{reply}"
    );
    assert!(reply.ends_with("\r\n+PONG\r\n"), "{reply}");
}

#[test]
fn clients_are_greeted_as_by_redis() {
    let server = Fixture::new("", "");
    let mut stream = connect(server.resp());
    for (command, reply) in [
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        ("CLIENT SETINFO LIB-NAME test", "+OK\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("AUTH default anything", "+OK\r\n"),
        (
            "AUTH eve x",
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        ),
        ("ECHO hi", "$2\r\nhi\r\n"),
        ("RESET", "+RESET\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        (
            "NOSUCH a",
            "-ERR unknown command 'NOSUCH', with args beginning with: 'a' \r\n",
        ),
        (
            "CL.THROTTLE k 0 0 60",
            "-ERR count is too small: write at least 1\r\n",
        ),
    ] {
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        expect(&mut stream, reply);
    }
    let reply = server.resp_exchange(b"AUTH secret\r\nINFO\r\nCLIENT LIST\r\nCOMMAND COUNT\r\n");
    assert!(
        reply.starts_with("-ERR AUTH called without any password"),
        "{reply}"
    );
    assert!(reply.contains("\r\nloading:0\r\n"), "{reply}");
    assert!(reply.contains("\r\nconnected_clients:2\r\n"), "{reply}");
    assert!(reply.contains("id=1 addr=127.0.0.1:"), "{reply}");
    assert!(reply.contains("id=2 addr=127.0.0.1:"), "{reply}");
}

#[test]
fn what_is_no_resp_gets_an_error_and_a_clean_end() {
    let server = Fixture::new("", "max_argument_bytes = 1000\nmax_frame_bytes = 2000");
    let rest = "x".repeat(100_000);
    for (garbage, error) in [
        ("*1\r\n*1\r\n", "an argument cannot be an aggregate"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1000000000\r\n", "invalid multibulk length"),
        ("*2\r\n$4\r\nECHO\r\n$536870912\r\n", "invalid bulk length"),
        ("GET / HTTP/1.1\r\n", "this port speaks RESP, not HTTP"),
        ("*1\r\n?", "expected '$', got '?'"),
    ] {
        let reply = server.resp_exchange(format!("PING\r\n{garbage}{rest}").as_bytes());
        let expected = format!("+PONG\r\n-ERR Protocol error: {error}");
        assert!(reply.starts_with(&expected), "{garbage:?}: {reply}");
    }
    server.until_metric("quell_protocol_errors_total{listener=\"resp\"}", "6");
}

#[test]
fn what_a_client_said_before_it_left_is_answered() {
    let server = Fixture::new("", "");
    assert_eq!(
        server.resp_exchange(b"PING\r\nPING\r\n"),
        "+PONG\r\n+PONG\r\n"
    );
    eventually("the connection is gone", || {
        server
            .metric("quell_connections{listener=\"resp\"}")
            .as_deref()
            == Some("0")
    });
}

#[test]
fn a_client_may_be_silent_but_not_stop_halfway() {
    let server = Fixture::new("", "stall_timeout = '4s'");
    let mut idle = connect(server.resp());
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
    let mut halfway = connect(server.resp());
    halfway.write_all(b"*2\r\n$4\r\nECHO\r\n$5\r\nhe").unwrap();
    let mut rest = Vec::new();
    halfway.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    server.until_metric("quell_timeouts_total{listener=\"resp\"}", "1");
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
}
