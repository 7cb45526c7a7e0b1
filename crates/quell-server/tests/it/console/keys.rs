//! The page of a key: what it says, what can be done there, and what is held.

use quell_host::access::Role;

use super::Guarded;
use crate::harness::{Fixture, request};

#[test]
fn a_key_is_looked_up_banned_and_forgiven() {
    let guarded = Guarded::new("");
    let (ada, rea) = (guarded.log_in("ada"), guarded.log_in("rea"));
    let page = "/console/keys?domain=shop&cost=1&entries=path%3D%2Fstrict%0D%0Auser%3Deve";
    let look = |cookie: &str| guarded.ask(("GET", page, ""), cookie).body;
    let change = |more: &str| {
        let form = format!("domain=shop&rule=strict&entries=user%3Deve&{more}");
        let answer = guarded.ask(("POST", "/console/keys", &form), &ada);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    };
    for _ in 0..2 {
        let shown = look(&rea);
        assert!(
            shown.contains("allowed; 1 remain by strict"),
            "never charged: {shown}"
        );
        assert!(
            shown.contains("<li>login: ") && !shown.contains("value=\"ban\""),
            "{shown}"
        );
    }
    let shown = change("action=ban&for=5m&reason=too+%22fast%22");
    assert!(shown.contains("Banned: 1 key."), "{shown}");
    let command = "quell bans set --domain shop --rule strict -e user=eve --for 5m";
    assert!(shown.contains(command), "{shown}");
    let shown = look(&ada);
    assert!(shown.contains("denied by strict, for 5m"), "{shown}");
    assert!(shown.contains("denies for 5m, banned: too &#34;fast&#34;</td>"));
    assert!(shown.contains("value=\"ban\""));
    let overview = guarded.ask(("GET", "/console", ""), &rea).body;
    let row = "<td class=\"number\">5m</td><td>too &#34;fast&#34;</td></tr>";
    assert!(overview.contains(row), "{overview}");
    // The link of a ban has the entries of its key, and no call: the rule matches by others.
    let link = (
        "GET",
        "/console/keys?domain=shop&rule=strict&entries=user%3Deve",
        "",
    );
    for cookie in [&ada, &rea] {
        let shown = guarded.ask(link, cookie).body;
        assert!(shown.contains("denies for 5m, banned"), "{shown}");
        assert!(shown.contains("and no whole call: no entry"), "{shown}");
        assert!(
            shown.contains("sliding_log 1/min") && !shown.contains("would be"),
            "{shown}"
        );
    }
    assert!(change("action=lift&for=5m").contains("Bans lifted: 1 key."));
    assert!(look(&rea).contains("allowed; 1 remain by strict"));
    assert!(change("action=forgive").contains("Forgiven: 0 keys."));
    let other = ("GET", "/console/keys?domain=shop&entries=", "");
    let shown = guarded.ask(other, &guarded.log_in("bo")).body;
    assert!(
        shown.contains("is not for the domain") && !shown.contains("strict"),
        "{shown}"
    );
}

/// A form that is refused is shown again with all that was written, and why.
#[test]
fn nothing_that_was_typed_about_a_key_is_lost() {
    let guarded = Guarded::new("");
    let (ada, rea) = (guarded.log_in("ada"), guarded.log_in("rea"));
    let change = |more: &str| {
        let form = format!("domain=shop&rule=strict&entries=user%3Deve&{more}");
        guarded.ask(("POST", "/console/keys", &form), &ada).body
    };
    for (more, told) in [
        ("action=ban&for=soon", "soon"),
        ("action=ban", "a ban needs a length"),
        ("action=rob", "write ban, lift or forgive"),
    ] {
        let shown = change(&format!("{more}&cost=3&reason=%3Cb%3Ewhy"));
        assert!(shown.contains(told), "{more}");
        for typed in [
            "value=\"&#60;b&#62;why\"",
            "name=\"cost\" value=\"3\"",
            "user=eve</textarea>",
        ] {
            assert!(shown.contains(typed), "{more}: {typed} is lost in {shown}");
        }
        assert!(
            shown.contains("<option selected>strict</option>"),
            "{more}: {shown}"
        );
    }
    let shown = change("action=ban&for=soon");
    assert!(shown.contains("name=\"for\" value=\"soon\""), "{shown}");
    let wrong = "domain=shop&rule=strict&entries=user&action=ban&for=9m&reason=why";
    let shown = guarded.ask(("POST", "/console/keys", wrong), &ada).body;
    for typed in [
        "value=\"9m\"",
        "value=\"why\"",
        "\nuser</textarea>",
        "<option selected>strict",
    ] {
        assert!(shown.contains(typed), "{typed} is lost in {shown}");
    }
    let wrong = "/console/keys?domain=shop&entries=user&cost=many";
    let shown = guarded.ask(("GET", wrong, ""), &rea).body;
    assert!(
        shown.contains("\nuser</textarea>") && shown.contains("value=\"many\""),
        "{shown}"
    );
}

#[test]
fn a_key_says_how_many_permits_are_held() {
    let rules = "{domain: shop, rules: [
        {name: jobs, match: {path: /job}, per: [user], algorithm: concurrency, max: 2, lease: 60s}]}";
    let server = Fixture::new(rules, "");
    let found = || {
        let page = "/console/keys?domain=shop&entries=path%3D%2Fjob%0Auser%3Deve";
        server.get(page).body
    };
    assert!(found().contains("0 of 2 permits are held; 2 of 2 remain"));
    assert!(!found().contains("Held now"));
    let id = server.acquire("/job", "eve").json()["id"].clone();
    let page = found();
    assert!(page.contains("1 of 2 permits are held; 1 of 2 remain"));
    let row = format!(
        "<td class=\"key\">{}</td><td class=\"number\">1</td><td>held</td><td>",
        id.as_str().unwrap()
    );
    assert!(page.contains(&row), "{page}");
    let command =
        "data-copy>quell holds --domain shop -e path=/job -e user=eve --url http://localhost</pre>";
    assert!(page.contains(command), "{page}");
    server.acquire("/job", "eve");
    server.acquire("/job", "ann");
    let page = found();
    assert!(
        page.contains("2 of 2 permits are held; denies for"),
        "{page}"
    );
    let body = format!(r#"{{"domain":"shop","id":{id}}}"#);
    assert_eq!(server.request("POST", "/v1/release", &body).status, 200);
    assert!(found().contains("1 of 2 permits are held"));
}

/// A reader does not learn how to end holds.
#[test]
fn readers_see_what_is_held_without_its_ids() {
    let guarded = Guarded::new("");
    let (_, asks) = guarded
        .tokens
        .iter()
        .find(|(role, _)| *role == Role::Ask)
        .unwrap();
    let fields = format!(
        "Authorization: Bearer {}\r\nContent-Type: application/json\r\n",
        asks.text()
    );
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"eve"},"id":"secret-name"}"#;
    let reserved = request(
        guarded.server.http(),
        ("POST", "/v1/reserve", body),
        &fields,
    );
    assert_eq!(reserved.json()["id"], "secret-name");
    let page = |name| {
        let target = "/console/keys?domain=shop&entries=path%3D%2Flogin%0Auser%3Deve";
        guarded.ask(("GET", target, ""), &guarded.log_in(name)).body
    };
    assert!(page("ada").contains("<td class=\"key\">secret-name</td>"));
    let shown = page("rea");
    assert!(
        shown.contains("<td>held</td>") && !shown.contains("secret-name"),
        "{shown}"
    );
}
