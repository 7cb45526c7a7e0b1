//! A proxy that has authenticated a person says who it is, and nobody else may.

use quell_host::access::Role;

use super::Guarded;

/// The status of a change that a proxy with its token asks for, with these fields beside it.
fn named(guarded: &Guarded, fields: &str) -> u16 {
    let fields = &format!("{fields}{}", guarded.proxy());
    let form = (
        "POST",
        "/console/keys",
        "domain=shop&rule=strict&entries=user%3Deve&action=forgive&reason=why",
    );
    guarded.ask(form, fields).status
}

/// A proxy that has authenticated a person says who it is; nobody else may.
#[test]
fn a_proxy_names_people_by_a_header_beside_its_token_and_only_from_its_address() {
    let header = "console_user_header = 'X-Forwarded-User'\nconsole_proxy = ";
    let action = (
        "POST",
        "/console/keys",
        "domain=shop&rule=strict&entries=user%3Deve&action=forgive",
    );
    let guarded = Guarded::new(&format!("{header}['127.0.0.0/8']"));
    // Other processes have the proxy's address, and not its token.
    let ada = "X-Forwarded-User: ada\r\n";
    assert_eq!(guarded.ask(action, ada).status, 401);
    let admin = guarded.tokens.iter().find(|(role, _)| *role == Role::Admin);
    let admin = format!("{ada}X-Quell-Token: {}\r\n", admin.unwrap().1.text());
    let done = guarded.ask(action, &admin);
    assert!(
        done.status == 200 && !done.body.contains("<span>ada</span>"),
        "{done:?}"
    );
    assert_eq!(named(&guarded, "X-Forwarded-User: ada\r\n"), 200);
    assert_eq!(
        named(&guarded, "X-Forwarded-User: rea\r\n"),
        403,
        "may only read"
    );
    for nobody in [
        "X-Forwarded-User: eve\r\n",
        "X-Forwarded-User: ada\r\nX-Forwarded-User: eve\r\n",
        "X-Forwarded-User: of-admin\r\n",
        "X-Forwarded-Use: ada\r\n",
    ] {
        assert_eq!(named(&guarded, nobody), 401, "{nobody}");
    }
    let proxy = guarded.proxy();
    let rea = format!("X-Forwarded-User: rea\r\n{proxy}");
    let overview = guarded.ask(("GET", "/console", ""), &rea);
    assert_eq!(overview.status, 200);
    let forwarded = format!("{rea}X-Forwarded-Proto: https\r\n");
    let over_tls = guarded.ask(("GET", "/console/rules/candidate", ""), &forwarded);
    assert!(
        over_tls.body.contains("FILE --url https://localhost</pre>"),
        "{over_tls:?}"
    );
    // The list of changes names the person.
    let row = "<td>the user `ada`</td><td>127.0.0.1</td><td class=\"key\">shop: ";
    assert!(overview.body.contains(row), "{}", overview.body);
    assert!(overview.body.contains("<td>why</td>"), "{}", overview.body);
    // Whom the proxy names counts before a session, and is nobody to the other routes.
    let session = guarded.log_in("ada");
    assert_eq!(
        named(&guarded, &format!("{session}X-Forwarded-User: rea\r\n")),
        403
    );
    assert_eq!(named(&guarded, &session), 200);
    let rules = guarded.ask(("GET", "/v1/rules", ""), &format!("{ada}{proxy}"));
    assert_eq!(rules.status, 403, "the role opens nothing by itself");
    // Whom it names nobody for logs in, as without a proxy.
    let page = guarded.ask(("GET", "/console", ""), &proxy);
    assert_eq!(page.field("location"), Some("/console/login"));
    let anywhere = Guarded::new("console_user_header = 'X-Forwarded-User'");
    assert_eq!(named(&anywhere, ada), 200);
    assert_eq!(anywhere.ask(action, ada).status, 401);
    let elsewhere = Guarded::new(&format!("{header}['10.0.0.1']"));
    assert_eq!(named(&elsewhere, "X-Forwarded-User: ada\r\n"), 403);
    let forwarded = format!("{}X-Forwarded-Proto: https\r\n", elsewhere.log_in("rea"));
    let page = elsewhere.ask(("GET", "/console/rules/candidate", ""), &forwarded);
    assert!(
        page.body.contains("FILE --url http://localhost</pre>"),
        "{page:?}"
    );
}
