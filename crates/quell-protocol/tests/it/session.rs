//! The commands that clients send on connecting, and the replies.

use std::time::Duration;

use quell_protocol::resp::{
    Client, Command, ConnectionFacts, Credentials, Decoder, FrameLimits, Hello, LibraryField,
    Protocol, Ready, ServerFacts,
};

use crate::support::{Reply, frame, parse, refusal, words, written};

fn hello(line: &str, expected: Hello<'_>) {
    parse(&words(line), |command| match command.unwrap() {
        Command::Hello(hello) => assert_eq!(hello, expected, "{line}"),
        other => panic!("{other:?}"),
    });
}

#[test]
fn hellos() {
    let protocol = |protocol| Hello {
        protocol: Some(protocol),
        ..Hello::default()
    };
    let credentials = Some(Credentials {
        user: Some(b"default"),
        password: b"secret",
    });
    hello("HELLO", Hello::default());
    hello("hello 2", protocol(Protocol::Resp2));
    hello("HELLO 3", protocol(Protocol::Resp3));
    hello(
        "HELLO 3 AUTH default secret",
        Hello {
            credentials,
            ..protocol(Protocol::Resp3)
        },
    );
    hello(
        "HELLO 3 setname me auth default secret",
        Hello {
            credentials,
            name: Some(b"me"),
            ..protocol(Protocol::Resp3)
        },
    );
}

#[test]
fn wrong_hellos() {
    const OPTIONS: &str = "write AUTH user password, or SETNAME name";
    for (line, expected) in [
        ("HELLO 1", "NOPROTO unsupported protocol version".to_owned()),
        ("HELLO 4", "NOPROTO unsupported protocol version".to_owned()),
        (
            "HELLO x",
            "ERR Protocol version is not an integer or out of range".to_owned(),
        ),
        (
            "HELLO 3 AUTH a",
            format!("ERR syntax error in HELLO option 'AUTH': {OPTIONS}"),
        ),
        (
            "HELLO 3 SETNAME",
            format!("ERR syntax error in HELLO option 'SETNAME': {OPTIONS}"),
        ),
        (
            "HELLO 3 NAME x",
            format!("ERR syntax error in HELLO option 'NAME': {OPTIONS}"),
        ),
    ] {
        assert_eq!(refusal(line), expected, "{line}");
    }
}

#[test]
fn credentials_are_never_shown() {
    for (line, user) in [("AUTH secret", None), ("AUTH me secret", Some(&b"me"[..]))] {
        parse(&words(line), |command| {
            let Ok(Command::Auth(credentials)) = &command else {
                panic!("{line}");
            };
            assert_eq!(credentials.user, user);
            assert_eq!(credentials.password, b"secret");
            assert!(
                !format!("{command:?}").contains("115, 101, 99"),
                "{command:?}"
            );
            assert!(!format!("{command:?}").contains("secret"), "{command:?}");
        });
    }
}

#[test]
fn frames_do_not_show_what_is_in_them() {
    let input = words("AUTH secret");
    let mut decoder = Decoder::new(FrameLimits::default());
    let shown = format!("{:?}", decoder.decode(&input).unwrap());
    assert_eq!(shown, "Command { args: Args { len: 2, .. }, length: 26 }");
}

#[test]
fn what_may_be_said_before_auth() {
    for (line, expected) in [
        ("AUTH x", true),
        ("HELLO 3", true),
        ("QUIT", true),
        ("RESET", true),
        ("PING", false),
        ("CL.THROTTLE k 1 1 1", false),
        ("CLIENT SETINFO LIB-NAME x", false),
    ] {
        parse(&words(line), |command| {
            assert_eq!(command.unwrap().is_before_auth(), expected, "{line}");
        });
    }
}

#[test]
fn client_subcommands() {
    let cases: [(&str, Client<'_>); 12] = [
        ("CLIENT SETNAME me", Client::SetName(b"me")),
        ("client getname", Client::GetName),
        (
            "CLIENT SETINFO LIB-NAME redis-py",
            Client::SetInfo {
                field: LibraryField::Name,
                value: b"redis-py",
            },
        ),
        (
            "CLIENT SETINFO lib-ver 5.0.1",
            Client::SetInfo {
                field: LibraryField::Version,
                value: b"5.0.1",
            },
        ),
        ("CLIENT ID", Client::Id),
        ("CLIENT INFO", Client::Info),
        ("CLIENT LIST", Client::List),
        ("CLIENT NO-EVICT on", Client::NoEvict(true)),
        ("CLIENT NO-EVICT OFF", Client::NoEvict(false)),
        ("CLIENT NO-TOUCH ON", Client::NoTouch(true)),
        ("CLIENT NO-TOUCH off", Client::NoTouch(false)),
        // redis-rs, node-redis and others put brackets and commas into their names.
        (
            "CLIENT SETINFO LIB-NAME ioredis(node,v20)",
            Client::SetInfo {
                field: LibraryField::Name,
                value: b"ioredis(node,v20)",
            },
        ),
    ];
    for (line, expected) in cases {
        parse(&words(line), |command| match command.unwrap() {
            Command::Client(client) => assert_eq!(client, expected, "{line}"),
            other => panic!("{other:?}"),
        });
    }
    parse(&frame(&[b"CLIENT", b"SETNAME", b""]), |command| {
        assert!(matches!(command, Ok(Command::Client(Client::SetName(b"")))));
    });
}

#[test]
fn wrong_client_subcommands() {
    const NAMES: &str = "Client names cannot contain spaces, newlines or special characters, nor more than 128 bytes";
    for (line, expected) in [
        (
            "CLIENT",
            "wrong number of arguments for 'client' command, usage: CLIENT SETNAME name | GETNAME | SETINFO LIB-NAME|LIB-VER value | ID | INFO | LIST | NO-EVICT ON|OFF | NO-TOUCH ON|OFF",
        ),
        (
            "CLIENT SETNAME",
            "wrong number of arguments for 'client|setname' command, usage: CLIENT SETNAME name | GETNAME | SETINFO LIB-NAME|LIB-VER value | ID | INFO | LIST | NO-EVICT ON|OFF | NO-TOUCH ON|OFF",
        ),
        (
            "CLIENT ID 1",
            "wrong number of arguments for 'client|id' command, usage: CLIENT SETNAME name | GETNAME | SETINFO LIB-NAME|LIB-VER value | ID | INFO | LIST | NO-EVICT ON|OFF | NO-TOUCH ON|OFF",
        ),
        (
            "CLIENT SETINFO LIB-NAME",
            "wrong number of arguments for 'client|setinfo' command, usage: CLIENT SETNAME name | GETNAME | SETINFO LIB-NAME|LIB-VER value | ID | INFO | LIST | NO-EVICT ON|OFF | NO-TOUCH ON|OFF",
        ),
        (
            "CLIENT SETINFO OS linux",
            "syntax error in CLIENT SETINFO option 'OS': write LIB-NAME or LIB-VER",
        ),
        (
            "CLIENT NO-EVICT maybe",
            "syntax error in CLIENT NO-EVICT option 'maybe': write ON or OFF",
        ),
        (
            "CLIENT REPLY OFF",
            "CLIENT REPLY is not available: every command is answered",
        ),
        (
            "CLIENT KILL 1",
            "unknown subcommand 'KILL' of CLIENT: write SETNAME, GETNAME, SETINFO, ID, INFO, LIST, NO-EVICT or NO-TOUCH",
        ),
        ("CLIENT SETNAME a\nb", NAMES),
        ("CLIENT SETNAME \u{e9}", NAMES),
    ] {
        assert_eq!(refusal(line), format!("ERR {expected}"), "{line:?}");
    }
    let spaced = frame(&[b"CLIENT", b"SETNAME", b"a b"]);
    let long = frame(&[b"CLIENT", b"SETNAME", &[b'x'; 129]]);
    let hello = frame(&[b"HELLO", b"3", b"SETNAME", b"a b"]);
    for input in [spaced, long, hello] {
        parse(&input, |command| {
            assert_eq!(command.unwrap_err().to_string(), NAMES);
        });
    }
}

#[test]
fn hello_is_answered_in_its_own_protocol() {
    let ready = Ready {
        version: "0.1.0",
        id: 7,
    };
    for (protocol, number) in [(Protocol::Resp2, 2), (Protocol::Resp3, 3)] {
        let reply = Reply::read(&written(protocol, |encoder| ready.write_reply(encoder)));
        let is_map = matches!(reply, Reply::Map(_));
        assert_eq!(is_map, protocol == Protocol::Resp3);
        let text = |text: &str| Reply::Text(text.to_owned());
        assert_eq!(reply.field("server"), &text("quell"));
        assert_eq!(reply.field("version"), &text("0.1.0"));
        assert_eq!(reply.field("proto"), &Reply::Integer(number));
        assert_eq!(reply.field("id"), &Reply::Integer(7));
        assert_eq!(reply.field("mode"), &text("standalone"));
        assert_eq!(reply.field("role"), &text("master"));
        assert_eq!(reply.field("modules"), &Reply::List(Vec::new()));
    }
}

const FACTS: ServerFacts<'_> = ServerFacts {
    version: "0.1.0",
    process_id: 42,
    port: 6380,
    uptime: Duration::from_secs(90_000),
    connections: 3,
    connections_received: 5,
    commands_processed: 9,
    keys: 11,
};

fn info(line: &str) -> String {
    parse(&words(line), |command| {
        let Ok(Command::Info(sections)) = command else {
            panic!("{command:?}");
        };
        let bytes = written(Protocol::Resp3, |encoder| {
            FACTS.write_reply(sections, encoder);
        });
        match Reply::read(&bytes) {
            Reply::Text(text) => text,
            other => panic!("{other:?}"),
        }
    })
}

/// Read as ioredis reads it: lines, each a name and a value separated by the first colon.
#[test]
fn info_has_what_clients_look_for() {
    let text = info("INFO");
    let value = |name: &str| {
        let line = text
            .split("\r\n")
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .to_owned()
    };
    assert_eq!(value("loading"), "0");
    assert_eq!(value("redis_version"), "7.2.0");
    assert_eq!(value("quell_version"), "0.1.0");
    assert_eq!(value("role"), "master");
    assert_eq!(value("cluster_enabled"), "0");
    assert_eq!(value("uptime_in_seconds"), "90000");
    assert_eq!(value("uptime_in_days"), "1");
    assert_eq!(value("tcp_port"), "6380");
    assert_eq!(value("connected_clients"), "3");
    assert_eq!(value("total_commands_processed"), "9");
    assert_eq!(value("quell_keys"), "11");
    assert!(text.starts_with("# Server\r\n"));
    assert!(text.contains("\r\n\r\n# Clients\r\n"));
}

#[test]
fn info_by_section() {
    let all = info("INFO");
    for line in ["INFO all", "INFO everything", "INFO DEFAULT", "INFO x all"] {
        assert_eq!(info(line), all, "{line}");
    }
    assert_eq!(info("INFO clients"), "# Clients\r\nconnected_clients:3\r\n");
    assert_eq!(
        info("INFO cluster PERSISTENCE"),
        "# Persistence\r\nloading:0\r\nasync_loading:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n"
    );
    assert_eq!(info("INFO nothing"), "");
}

#[test]
fn a_connection_is_a_line() {
    let facts = ConnectionFacts {
        id: 7,
        remote_address: "127.0.0.1:50000",
        local_address: "127.0.0.1:6380",
        name: b"me",
        library_name: b"redis-py",
        library_version: b"",
        age: Duration::from_millis(2_900),
        protocol: Protocol::Resp3,
    };
    let mut text = String::new();
    facts.write_line(&mut text);
    assert_eq!(
        text,
        "id=7 addr=127.0.0.1:50000 laddr=127.0.0.1:6380 name=me age=2 flags=N db=0 user=default lib-name=redis-py lib-ver= resp=3\n"
    );
}
