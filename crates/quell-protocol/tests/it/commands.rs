//! Commands: the requests that frames contain, and the errors for frames that contain none.

use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::query_bounds::{MAX_DOMAIN_BYTES, MAX_ENTRIES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use quell_protocol::resp::{Command, Encoder, Protocol};

use crate::support::{frame, owned, parse, refusal, words};

/// A command in short form.
fn shown(line: &str) -> String {
    parse(&words(line), |command| match command.unwrap() {
        Command::Ping(None) => "ping".to_owned(),
        Command::Ping(Some(message)) => format!("ping {}", message.escape_ascii()),
        Command::Echo(message) => format!("echo {}", message.escape_ascii()),
        Command::Info(sections) => format!("info {}", owned(sections).len()),
        Command::Select => "select".to_owned(),
        Command::Quit => "quit".to_owned(),
        Command::Reset => "reset".to_owned(),
        Command::Table(_) => "table".to_owned(),
        other => format!("{other:?}"),
    })
}

#[test]
fn simple_commands_in_any_case() {
    for (line, expected) in [
        ("PING", "ping"),
        ("ping", "ping"),
        ("PiNg hello", "ping hello"),
        ("echo x", "echo x"),
        ("INFO", "info 0"),
        ("info server clients", "info 2"),
        ("SELECT 0", "select"),
        ("QUIT", "quit"),
        ("quit now please", "quit"),
        ("RESET", "reset"),
        ("COMMAND", "table"),
        ("command docs ping", "table"),
    ] {
        assert_eq!(shown(line), expected, "{line}");
    }
}

#[test]
fn wrong_commands() {
    for (line, expected) in [
        (
            "PING a b",
            "ERR wrong number of arguments for 'ping' command, usage: PING [message]",
        ),
        (
            "ECHO",
            "ERR wrong number of arguments for 'echo' command, usage: ECHO message",
        ),
        (
            "ECHO a b",
            "ERR wrong number of arguments for 'echo' command, usage: ECHO message",
        ),
        (
            "SELECT",
            "ERR wrong number of arguments for 'select' command, usage: SELECT 0",
        ),
        (
            "RESET x",
            "ERR wrong number of arguments for 'reset' command, usage: RESET",
        ),
        (
            "AUTH",
            "ERR wrong number of arguments for 'auth' command, usage: AUTH [user] password",
        ),
        (
            "AUTH a b c",
            "ERR wrong number of arguments for 'auth' command, usage: AUTH [user] password",
        ),
        (
            "QUELL.PEEK",
            "ERR wrong number of arguments for 'quell.peek' command, usage: QUELL.PEEK domain [COST n] [name value ..]",
        ),
        (
            "COMMAND COUNT x",
            "ERR wrong number of arguments for 'command|count' command, usage: COMMAND [COUNT | LIST | DOCS [name ..] | INFO [name ..]]",
        ),
        (
            "COMMAND GETKEYS x",
            "ERR unknown subcommand 'GETKEYS' of COMMAND: write COUNT, LIST, DOCS or INFO",
        ),
        ("SELECT x", "ERR invalid DB index"),
        (
            "SELECT 1",
            "ERR DB index is out of range: there is one, write SELECT 0 (domains keep states apart)",
        ),
        (
            "SELECT -1",
            "ERR DB index is out of range: there is one, write SELECT 0 (domains keep states apart)",
        ),
        (
            "GET",
            "ERR unknown command 'GET', with args beginning with: ",
        ),
        (
            "GET a b",
            "ERR unknown command 'GET', with args beginning with: 'a' 'b' ",
        ),
    ] {
        assert_eq!(refusal(line), expected, "{line}");
    }
}

/// The client's text is echoed shortened and escaped.
#[test]
fn unknown_commands_are_shown_within_bounds() {
    let name = [b'x'; 5_000];
    let input = frame(&[&name, b"a\r\nb", b"\xff'", &name, &name, &name]);
    let text = parse(&input, |command| command.unwrap_err().to_string());
    assert!(text.starts_with("unknown command 'xxx"), "{text}");
    assert!(text.contains("'a\\r\\nb' '\\xff\\'' 'xxx"), "{text}");
    assert!(text.len() < 350, "{} bytes", text.len());
}

fn query(line: &str) -> Query<'static> {
    parse(&words(line), |command| match command.unwrap() {
        Command::Acquire(query) | Command::Peek(query) => copied(&query),
        other => panic!("{other:?}"),
    })
}

/// A query that owns its bytes.
fn copied(query: &Query<'_>) -> Query<'static> {
    let mut copy = Query::new(query.domain().to_owned()).cost(query.descriptors()[0].cost);
    for entry in query.descriptors()[0].entries() {
        copy = copy.entry(entry.name.clone().into_owned(), entry.value.to_vec());
    }
    copy
}

#[test]
fn questions_become_queries() {
    let shop = || Query::new("shop");
    for (line, expected) in [
        ("QUELL.ACQUIRE shop", shop()),
        (
            "quell.acquire shop path /login",
            shop().entry("path", "/login"),
        ),
        (
            "QUELL.ACQUIRE shop COST 3 path /x method GET",
            shop()
                .entry("path", "/x")
                .entry("method", "GET")
                .cost(Cost::new(3).unwrap()),
        ),
        (
            "QUELL.PEEK shop cost 18446744073709551615",
            shop().cost(Cost::new(u64::MAX).unwrap()),
        ),
        ("QUELL.PEEK shop COST 1 cost 7", shop().entry("cost", "7")),
        (
            "QUELL.PEEK shop a 1 COST 7",
            shop().entry("a", "1").entry("COST", "7"),
        ),
    ] {
        assert_eq!(query(line), expected, "{line}");
    }
}

#[test]
fn acquire_and_peek_are_told_apart() {
    let is_peek = |line: &str| {
        parse(&words(line), |command| match command.unwrap() {
            Command::Acquire(_) => false,
            Command::Peek(_) => true,
            other => panic!("{other:?}"),
        })
    };
    assert!(!is_peek("QUELL.ACQUIRE shop a b"));
    assert!(is_peek("QUELL.PEEK shop a b"));
}

#[test]
fn values_are_any_bytes() {
    let input = frame(&[b"QUELL.ACQUIRE", b"shop", b"user", b"\0\xff\r\n", b"x", b""]);
    parse(&input, |command| {
        let Ok(Command::Acquire(query)) = command else {
            panic!("{command:?}");
        };
        let descriptor = &query.descriptors()[0];
        assert_eq!(descriptor.get("user"), Some(&b"\0\xff\r\n"[..]));
        assert_eq!(descriptor.get("x"), Some(&b""[..]));
    });
    let integer = b"*4\r\n$10\r\nQUELL.PEEK\r\n$4\r\nshop\r\n$4\r\nuser\r\n:42\r\n";
    parse(integer, |command| {
        let Ok(Command::Peek(query)) = command else {
            panic!("{command:?}");
        };
        assert_eq!(query.descriptors()[0].get("user"), Some(&b"42"[..]));
    });
}

#[test]
fn wrong_questions() {
    for (line, expected) in [
        (
            "QUELL.ACQUIRE shop path",
            "an entry of QUELL.ACQUIRE has a name and no value: write pairs of a name and a value",
        ),
        (
            "QUELL.PEEK shop COST 1 path",
            "an entry of QUELL.PEEK has a name and no value: write pairs of a name and a value",
        ),
        (
            "QUELL.ACQUIRE shop COST",
            "COST of QUELL.ACQUIRE is not a whole number: write COST and a number of at least 1",
        ),
        (
            "QUELL.ACQUIRE shop COST -1 a b",
            "COST of QUELL.ACQUIRE is not a whole number: write COST and a number of at least 1",
        ),
        (
            "QUELL.ACQUIRE shop COST 1.5 a b",
            "COST of QUELL.ACQUIRE is not a whole number: write COST and a number of at least 1",
        ),
        (
            "QUELL.ACQUIRE shop COST 0 a b",
            "a cost of 0 charges nothing: write at least 1, or peek (QUELL.PEEK, /v1/peek)",
        ),
        (
            "QUELL.ACQUIRE shop a 1 b 2 a 3",
            "the entry \"a\" appears twice: write each name once",
        ),
        (
            "QUELL.ACQUIRE ",
            "the domain is empty: write the domain of your rules, such as shop",
        ),
        (
            "QUELL.ACQUIRE shop  x",
            "an entry has an empty name: write a name such as path",
        ),
    ] {
        assert_eq!(refusal(line), format!("ERR {expected}"), "{line}");
    }
}

fn error_of(arguments: &[&[u8]]) -> String {
    let arguments = [&[&b"QUELL.ACQUIRE"[..]], arguments].concat();
    parse(&frame(&arguments), |command| {
        command.unwrap_err().to_string()
    })
}

#[test]
fn questions_have_bounds() {
    let long = [b'x'; MAX_VALUE_BYTES + 1];
    let name = &long[..=MAX_NAME_BYTES];
    let domain = &long[..=MAX_DOMAIN_BYTES];
    assert!(error_of(&[domain]).contains("longer than 255 bytes"));
    assert!(error_of(&[b"\xff"]).contains("the domain is not UTF-8"));
    assert!(error_of(&[b"shop", b"\xff", b"x"]).contains("not UTF-8"));
    assert!(error_of(&[b"shop", name, b"x"]).contains("longer than 255 bytes"));
    assert!(error_of(&[b"shop", b"a", &long]).contains("longer than 8192 bytes"));

    let names: Vec<String> = (0..=MAX_ENTRIES).map(|n| format!("n{n}")).collect();
    let mut arguments: Vec<&[u8]> = vec![b"shop"];
    for name in &names {
        arguments.extend([name.as_bytes(), b"x"]);
    }
    assert!(error_of(&arguments).contains("more than 64 entries"));
    let fits = [&[&b"QUELL.ACQUIRE"[..]], &arguments[..=2 * MAX_ENTRIES]].concat();
    parse(&frame(&fits), |command| assert!(command.is_ok()));
}

#[test]
fn errors_carry_their_code() {
    let reply = parse(&words("HELLO 4"), |command| {
        let mut out = Vec::new();
        command
            .unwrap_err()
            .write(&mut Encoder::new(&mut out, Protocol::Resp3));
        out
    });
    assert_eq!(reply, b"-NOPROTO unsupported protocol version\r\n");
}
