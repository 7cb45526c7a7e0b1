//! Replies: the bytes of both protocols, and the table of commands.

use quell_protocol::resp::{Command, Encoder, Protocol};

use crate::support::{Reply, parse, words, written};

#[test]
fn each_kind_in_both_protocols() {
    type Write = fn(&mut Encoder<'_>);
    let cases: [(Write, &str, &str); 20] = [
        (|e| e.simple("OK"), "+OK\r\n", "+OK\r\n"),
        (|e| e.simple("a\r\nb"), "+a  b\r\n", "+a  b\r\n"),
        (
            |e| e.error("ERR", "no\nway"),
            "-ERR no way\r\n",
            "-ERR no way\r\n",
        ),
        (|e| e.integer(0), ":0\r\n", ":0\r\n"),
        (|e| e.integer(-1), ":-1\r\n", ":-1\r\n"),
        (
            |e| e.integer(1_234_567_890),
            ":1234567890\r\n",
            ":1234567890\r\n",
        ),
        (
            |e| e.integer(i64::MAX),
            ":9223372036854775807\r\n",
            ":9223372036854775807\r\n",
        ),
        (
            |e| e.integer(i64::MIN),
            ":-9223372036854775808\r\n",
            ":-9223372036854775808\r\n",
        ),
        (|e| e.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
        (
            |e| e.bulk(b"a\r\nb"),
            "$4\r\na\r\nb\r\n",
            "$4\r\na\r\nb\r\n",
        ),
        (
            |e| e.verbatim("text"),
            "$4\r\ntext\r\n",
            "=8\r\ntxt:text\r\n",
        ),
        (|e| e.null(), "$-1\r\n", "_\r\n"),
        (|e| e.boolean(true), ":1\r\n", "#t\r\n"),
        (|e| e.boolean(false), ":0\r\n", "#f\r\n"),
        (|e| e.array(0), "*0\r\n", "*0\r\n"),
        (|e| e.array(12), "*12\r\n", "*12\r\n"),
        (|e| e.set(2), "*2\r\n", "~2\r\n"),
        (|e| e.map(2), "*4\r\n", "%2\r\n"),
        (|e| e.map(0), "*0\r\n", "%0\r\n"),
        (
            |e| e.bulk(&[b'x'; 10]),
            "$10\r\nxxxxxxxxxx\r\n",
            "$10\r\nxxxxxxxxxx\r\n",
        ),
    ];
    for (write, resp2, resp3) in cases {
        let text = |protocol| String::from_utf8(written(protocol, write)).unwrap();
        assert_eq!(text(Protocol::Resp2), resp2);
        assert_eq!(text(Protocol::Resp3), resp3);
    }
}

#[test]
fn replies_are_appended() {
    let mut out = b"before".to_vec();
    let mut encoder = Encoder::new(&mut out, Protocol::Resp3);
    assert_eq!(encoder.protocol(), Protocol::Resp3);
    encoder.simple("OK");
    encoder.integer(1);
    assert_eq!(out, b"before+OK\r\n:1\r\n");
}

fn table(line: &str, protocol: Protocol) -> Reply {
    parse(&words(line), |command| {
        let Ok(Command::Table(request)) = command else {
            panic!("{command:?}");
        };
        Reply::read(&written(protocol, |encoder| request.write_reply(encoder)))
    })
}

fn list(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::List(list) => list,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_table_is_what_is_understood() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let all = table("COMMAND", protocol);
        let names = table("COMMAND LIST", protocol);
        let count = table("COMMAND COUNT", protocol);
        assert_eq!(list(&all).len(), 22);
        assert_eq!(count, Reply::Integer(22));
        assert_eq!(table("COMMAND INFO", protocol), all);
        for (row, name) in list(&all).iter().zip(list(&names)) {
            assert_eq!(list(row).len(), 10, "as Redis 7 has it");
            assert_eq!(&list(row)[0], name);
            let (Reply::Text(name), Reply::Integer(arity)) = (name, &list(row)[1]) else {
                panic!("{row:?}");
            };
            understood(name, usize::try_from(arity.unsigned_abs()).unwrap());
        }
    }
}

/// A command with its least number of arguments is not refused for their number; with one fewer it
/// is.
fn understood(name: &str, least: usize) {
    let line = format!("{name}{}", " 1".repeat(least - 1));
    parse(&words(&line), |command| {
        let arity = format!("wrong number of arguments for '{name}' command");
        assert!(
            !command.is_err_and(|error| error.to_string().starts_with(&arity)),
            "{line}"
        );
    });
    if least > 1 {
        let less = format!("{name}{}", " 1".repeat(least - 2));
        parse(&words(&less), |command| {
            let upper = name.to_ascii_uppercase();
            let usage = format!("wrong number of arguments for '{name}' command, usage: {upper} ");
            let error = command.unwrap_err().to_string();
            assert!(error.starts_with(&usage), "{error}");
        });
    }
}

#[test]
fn one_row() {
    let rows = table("COMMAND INFO CL.throttle get ping", Protocol::Resp3);
    let [throttle, get, ping] = list(&rows) else {
        panic!("{rows:?}");
    };
    let text = |text: &str| Reply::Text(text.to_owned());
    assert_eq!(
        list(throttle)[..6],
        [
            text("cl.throttle"),
            Reply::Integer(-5),
            Reply::List(vec![text("write"), text("fast")]),
            Reply::Integer(1),
            Reply::Integer(1),
            Reply::Integer(1),
        ]
    );
    assert_eq!(get, &Reply::Null);
    assert_eq!(list(ping)[3], Reply::Integer(0), "no keys");
    assert_eq!(
        written(Protocol::Resp2, |encoder| {
            parse(&words("COMMAND INFO get"), |command| match command {
                Ok(Command::Table(request)) => request.write_reply(encoder),
                other => panic!("{other:?}"),
            });
        }),
        b"*1\r\n*-1\r\n"
    );
}

#[test]
fn docs_say_what_a_command_does() {
    let docs = table("COMMAND DOCS", Protocol::Resp3);
    let Reply::Map(rows) = &docs else {
        panic!("{docs:?}");
    };
    assert_eq!(rows.len(), 22);
    for (name, about) in rows {
        let Reply::Text(summary) = about.field("summary") else {
            panic!("{name:?}");
        };
        assert!(summary.split(' ').count() > 2, "{name:?}: {summary}");
    }
    let two = table("COMMAND DOCS ping nothing ECHO", Protocol::Resp2);
    assert_eq!(list(&two).len(), 4, "two names and their maps");
    assert!(matches!(two.field("echo"), Reply::List(_)));
    assert_eq!(
        table("COMMAND DOCS nothing", Protocol::Resp2),
        Reply::List(Vec::new())
    );
}
