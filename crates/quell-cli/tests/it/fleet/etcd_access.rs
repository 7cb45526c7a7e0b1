//! An etcd that wants to be shown certificates, a user and a password.

use quell_testkit::etcd::Etcd;

use super::{Coordinator, Node, RULES, count};
use crate::files::Folder;
use crate::process::{quell, run};

/// Prefixes that a fleet, its overrides and its rules need, and no more.
const PREFIXES: [&str; 3] = [
    "/quell/default/",
    "/quell-overrides/default/",
    "/quell-rules/shop/",
];

#[test]
fn a_guarded_etcd_has_the_fleet_and_its_rules() {
    let etcd = Etcd::guarded("quell", "of the fleet", &PREFIXES);
    let folder = Folder::new();
    let password = folder.write("password", "of the fleet\n");
    let path = |name: &str| etcd.certificates().path(name);
    let access = [
        ("QUELL_ETCD_CA", path("ca.pem")),
        ("QUELL_ETCD_CERT", path("client.pem")),
        ("QUELL_ETCD_KEY", path("client.key")),
        ("QUELL_ETCD_USER", "quell".to_owned()),
        ("QUELL_ETCD_PASSWORD_FILE", password),
    ];
    let rules = folder.write("shop.yaml", RULES);
    let store = etcd.rules("shop");
    let push = |variables: &[(&str, String)]| {
        let mut push = quell(&["rules", "push", &rules, "--store", &store]);
        run(push.envs(variables.iter().map(|(name, value)| (name, value))))
    };
    // Without a certificate, without a user, and with all.
    for shown in [&access[..1], &access[..3]] {
        let refused = push(shown);
        assert_eq!(refused.code(), Some(3), "{refused:?}");
    }
    push(&access).expect_success();

    let flags = [
        "--etcd-ca",
        "--etcd-cert",
        "--etcd-key",
        "--etcd-user",
        "--etcd-password-file",
    ];
    let endpoint = etcd.endpoint();
    let shown = flags.iter().zip(&access);
    let shown = shown.flat_map(|(flag, (_, value))| [*flag, value]);
    let words: Vec<&str> = ["--etcd", &endpoint].into_iter().chain(shown).collect();
    let coordinator = Coordinator::start(&rules, &words, &[]);
    let node = Node::start(&folder, &rules, 1, &[&coordinator]);
    node.until_it_is("granted");
    coordinator.until("the node is there", |status| count(status, "active") == 1);
}
