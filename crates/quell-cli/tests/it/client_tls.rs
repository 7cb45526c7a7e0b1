//! `quell check` and `quell bans` over https.

use std::process::Command;

use quell_testkit::certificates::Certificates;

use crate::files::{Folder, window_rules};
use crate::process::{Run, quell, run};
use crate::server::{Server, tls_flags};

const CHECK: [&str; 5] = ["check", "--domain", "shop", "-e", "user=a"];

/// Asks a server at this address, with these arguments.
fn check(url: &str, arguments: &[&str]) -> Run {
    let mut command = quell(&CHECK);
    run(command.args(["--url", url]).args(arguments))
}

fn serve(folder: &Folder, more: &[&str]) -> Command {
    let rules = folder.write("shop.yaml", &window_rules("shop", "9/h"));
    let mut serve = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "off"]);
    serve.args(["--rules", &rules]).args(more);
    serve
}

#[test]
fn a_server_is_asked_over_https_if_its_authority_is_known() {
    let (folder, certificates) = (Folder::new(), Certificates::new());
    let server = Server::spawn(serve(&folder, &[]).args(tls_flags(&certificates)));
    let url = format!("https://localhost:{}", server.http);
    let authority = certificates.path("ca.pem");
    let known = ["--ca", &authority];
    check(&url, &known).expect_success();
    let mut bans = quell(&["bans", "list", "--url", &url]);
    run(bans.env("QUELL_CA", &authority)).expect_success();

    let key = certificates.path("client.key");
    let by_address = format!("https://127.0.0.1:{}", server.http);
    let plain = format!("http://localhost:{}", server.http);
    for (url, arguments, code, told) in [
        (
            &url,
            &[][..],
            3,
            "write the authority's own into --ca FILE (QUELL_CA)",
        ),
        (&by_address, &known, 3, "write one of its names into --url"),
        (&plain, &[], 2, "https://"),
        (&url, &["--ca", &key], 2, "there is no certificate in"),
        (
            &url,
            &["--ca", "/nowhere/ca.pem"],
            2,
            "cannot read /nowhere/ca.pem",
        ),
    ] {
        let refused = check(url, arguments);
        assert_eq!(refused.code(), Some(code), "{refused:?}");
        assert!(refused.stderr.contains(told), "no {told:?} in {refused:?}");
    }
    server.stop();
    // As `openssl req -x509` makes one unless told otherwise.
    let own = [
        "--tls-cert",
        &authority,
        "--tls-key",
        &certificates.path("ca.key"),
    ];
    let server = Server::spawn(serve(&folder, &[]).args(own));
    let refused = check(&format!("https://localhost:{}", server.http), &known);
    let told = "make one with basicConstraints=CA:FALSE";
    assert!(refused.stderr.contains(told), "{refused:?}");
    server.stop();
    let server = Server::spawn(&mut serve(&folder, &[]));
    let plain = check(&format!("https://localhost:{}", server.http), &known);
    let told = format!("write http://localhost:{}", server.http);
    assert!(plain.stderr.contains(&told), "{plain:?}");
    server.stop();
}

#[test]
fn a_certificate_is_shown_in_place_of_a_token() {
    let (folder, certificates) = (Folder::new(), Certificates::new());
    let [authority, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name));
    let entry = "[[certificates]]\nname = \"checkout\"\nsan = \"spiffe://example.org/checkout\"\n\
                 roles = [\"ask\"]\n";
    let credentials = folder.write("credentials.toml", entry);
    let more = ["--credentials", &credentials, "--tls-client-ca", &authority];
    let server = Server::spawn(serve(&folder, &more).args(tls_flags(&certificates)));
    let url = format!("https://localhost:{}", server.http);
    let with = |certificate: &str, key: &str| {
        check(
            &url,
            &["--ca", &authority, "--cert", certificate, "--key", key],
        )
    };
    with(&certificate, &key).expect_success();
    let other = certificates.path("server.key");
    let told = with(&certificate, &other).stderr;
    assert!(
        told.contains("write the two that belong together"),
        "{told}"
    );
    let told = with(&certificate, &certificate).stderr;
    assert!(told.contains("there is no private key in"), "{told}");
    let stranger = Certificates::new();
    let unknown = with(&stranger.path("client.pem"), &stranger.path("client.key"));
    assert!(
        unknown.stderr.contains("into --cert FILE, with --key FILE"),
        "{unknown:?}"
    );
    let none = check(&url, &["--ca", &authority]).stderr;
    assert!(none.contains("the server wants a token"), "{none}");
    server.stop();
}
