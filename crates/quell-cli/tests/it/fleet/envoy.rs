//! Nodes of a fleet that Envoy asks: their shares decide, as on their other listeners.

use std::thread;
use std::time::Instant;

use quell_envoy::proto::{
    Code, Descriptor, Entry, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use quell_testkit::port::free_port;

use super::load::{Admitted, judge};
use super::{BURST, Coordinator, Node, RATE, RULES};
use crate::files::Folder;
use crate::process::pace;

/// Calls that each node has to admit, which are more than all of the burst.
const ENOUGH: usize = 100;

/// Asks the listener on a port until it has admitted and refused enough. Returns what it admitted.
fn ask(port: u16) -> Vec<Admitted> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let mut client = runtime
        .block_on(RateLimitServiceClient::connect(url))
        .unwrap();
    let entry = Entry {
        key: "path".to_owned(),
        value: "/".to_owned(),
    };
    let descriptor = Descriptor {
        entries: vec![entry],
        ..Descriptor::default()
    };
    let question = RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let (mut admitted, mut refused) = (Vec::new(), 0);
    while admitted.len() < ENOUGH || refused == 0 {
        let asked = Instant::now();
        let answer = runtime.block_on(client.should_rate_limit(question.clone()));
        let heard = Instant::now();
        match check(answer.unwrap().get_ref()) {
            Code::Ok => admitted.push(Admitted { asked, heard }),
            _ => {
                refused += 1;
                pace();
            }
        }
    }
    admitted
}

/// Checks that an answer is that of the rule, and returns what it is.
fn check(answer: &RateLimitResponse) -> Code {
    let [status] = answer.statuses.as_slice() else {
        panic!("{answer:?}");
    };
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(limit.name, "api", "{answer:?}");
    assert_eq!(status.code(), answer.overall_code(), "{answer:?}");
    answer.overall_code()
}

#[test]
fn a_limit_holds_over_the_nodes_that_envoy_asks() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let place = folder.path("fleet.db");
    let mut coordinator = Coordinator::start(&file, &["--embedded", &place], &[]);
    let ports = [free_port(), free_port()];
    let nodes = [(1, ports[0]), (2, ports[1])].map(|(member, port)| {
        let listener = format!("127.0.0.1:{port}");
        Node::with(
            &folder,
            &file,
            member,
            &coordinator.url(),
            &["--envoy", &listener],
        )
    });
    for node in &nodes {
        node.until_it_is("granted");
    }
    let callers = ports.map(|port| thread::spawn(move || ask(port)));
    let admitted = callers.map(|caller| caller.join().unwrap()).concat();
    judge(&admitted, RATE, BURST);
    for mut node in nodes {
        node.stop();
    }
    coordinator.stop();
}
