//! Crowd: as many connections as a server takes, and how it does with few files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::{PATIENCE, until};
use crate::server::Server;

/// Lets this process have `needed` files open.
fn allow(needed: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    assert!(
        maximum.is_none_or(|maximum| maximum >= needed),
        "this test needs {needed} open files and may have {maximum:?}: raise the hard limit (ulimit -Hn)"
    );
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether `PING` is answered.
fn is_served(mut stream: &TcpStream) -> bool {
    let mut reply = [0; 7];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut reply).is_ok()
        && &reply == b"+PONG\r\n"
}

#[test]
fn ten_thousand_connections_are_served_and_others_too() {
    allow(10_500);
    let server = Server::start(&["--max-connections-per-address", "0"]);
    let crowd: Vec<TcpStream> = (0..10_000).map(|_| connect(server.resp)).collect();
    let unserved = crowd.iter().filter(|stream| !is_served(stream)).count();
    assert_eq!(unserved, 0, "{}", server.log());
    let open = "quell_connections{listener=\"resp\"}";
    assert_eq!(server.metric(open), Some(10_000));
    // One more is told so; the other listener has places of its own.
    let mut told = String::new();
    connect(server.resp).read_to_string(&mut told).unwrap();
    assert_eq!(told, "-ERR max number of clients reached\r\n");
    assert_eq!(server.health()["status"], "ok");
    drop(crowd);
    until("all places are back", || {
        (server.metric(open)? == 0).then_some(())
    });
    assert!(is_served(&connect(server.resp)));
    server.stop();
}

/// Shells and supervisors often allow 1,024 files, and let a program have more that asks for them.
#[test]
fn a_low_limit_of_open_files_is_raised_or_told() {
    allow(1_024);
    let start = |limit: &str| {
        let script = format!(
            "ulimit {limit} 300; exec \"$0\" serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --max-connections 400"
        );
        let mut shell = Command::new("bash");
        Server::spawn(shell.args(["-c", &script, env!("CARGO_BIN_EXE_quell")]))
    };
    let told = "fewer open files than max_connections";
    let server = start("-Sn");
    let crowd: Vec<TcpStream> = (0..400).map(|_| connect(server.resp)).collect();
    assert!(crowd.iter().all(is_served), "{}", server.log());
    assert!(!server.log().contains(told), "{}", server.log());
    let server = start("-n");
    assert!(server.log().contains(told), "{}", server.log());
    // It goes on with those that it has, and with the others when there are files again.
    let crowd: Vec<TcpStream> = (0..200).map(|_| connect(server.resp)).collect();
    assert!(crowd.iter().all(is_served), "{}", server.log());
    let more: Vec<TcpStream> = (0..200).map(|_| connect(server.resp)).collect();
    drop(crowd);
    assert!(more.iter().all(is_served), "{}", server.log());
}
