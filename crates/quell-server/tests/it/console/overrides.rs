//! The pages of overrides: the list, and a key that is read and changed by a form.

use std::time::Duration;

use quell_host::access::Role;
use serde_json::{Value, json};

use super::{Guarded, form_urlencoded};
use crate::harness::{Fixture, request};

const RULES: &str = "
domain: shop
plans: { gold: { api: { rate: 300/min } } }
rules:
  - { name: api, match: { kind: api }, per: [tenant], rate: 100/min }
  - { name: other, match: { kind: other }, per: [tenant], rate: 10/min }
---
domain: bank
rules: [{ name: api, per: [tenant], rate: 10/min }]
";

const ACME: &str = "domain=shop&rule=api&entries=tenant%3Dacme";

/// The page of the key of [`ACME`].
fn page(guarded: &Guarded, cookie: &str) -> String {
    let target = format!("/console/overrides/key?{ACME}");
    let answer = guarded.ask(("GET", &target, ""), cookie);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// Sends the form about that key.
fn send(guarded: &Guarded, cookie: &str, more: &str) -> String {
    let form = format!("{ACME}&{more}");
    let answer = guarded.ask(("POST", "/console/overrides/key", &form), cookie);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// What the route says of the key.
fn of_route(guarded: &Guarded) -> Value {
    let reader = { guarded.tokens.iter() }.find(|(role, _)| *role == Role::Read);
    let fields = format!("Authorization: Bearer {}\r\n", reader.unwrap().1.text());
    let target = "/v1/overrides/shop/api?tenant=acme";
    request(guarded.server.http(), ("GET", target, ""), &fields).json()
}

#[track_caller]
fn assert_has(page: &str, all: &[&str]) {
    for words in all {
        assert!(page.contains(words), "{words} is not in {page}");
    }
}

#[test]
fn an_override_is_set_by_who_has_the_role_for_it() {
    let guarded = Guarded::with_rules(RULES, "");
    let pol = guarded.log_in("pol");
    let shown = page(&guarded, &pol);
    let rule = "<th scope=\"row\">rule</th><td>token_bucket 100/min, burst 100</td><td></td>\
                <td><strong class=\"good\">now</strong></td>";
    assert_has(
        &shown,
        &[rule, "It has no override of its own", "0 used, 100 remain"],
    );
    assert_has(&shown, &["name=\"standing\" value=\"0\"", "value=\"set\""]);
    assert!(!shown.contains("delete-"), "{shown}");

    let set =
        "action=set&numbers=rate%3D200%2Fmin%0D%0Aburst%3D150&reason=a+%3Csale%3E&change=keep";
    let shown = send(&guarded, &pol, set);
    let command = "quell overrides set shop api -e tenant=acme rate=200/min burst=150 --change keep \
                   --reason &#39;a &#60;sale&#62;&#39; --url http://localhost</pre>";
    assert_has(
        &shown,
        &["Set: revision 1.", command, "name=\"standing\" value=\"1\""],
    );
    assert_has(
        &shown,
        &[
            "\nburst=150\nrate=200/min</textarea>",
            "value=\"a &#60;sale&#62;\"",
        ],
    );
    assert_has(
        &shown,
        &["Applies now: <strong>token_bucket 200/min, burst 150</strong>"],
    );
    let record = &of_route(&guarded)["overrides"][0];
    assert_eq!(
        (
            &record["burst"],
            &record["rate"],
            &record["by"],
            &record["reason"]
        ),
        (
            &json!(150),
            &json!("200/min"),
            &json!("pol"),
            &json!("a <sale>")
        )
    );
}

/// Somebody plans the numbers of later, and means to keep the present ones until then.
#[test]
fn numbers_of_later_do_not_end_those_of_now() {
    let guarded = Guarded::with_rules(RULES, "");
    let pol = guarded.log_in("pol");
    send(&guarded, &pol, "action=set&numbers=rate%3D200%2Fmin");
    let later = "action=set&standing=1&boost=0&numbers=rate%3D300%2Fmin&from=2h&reason=autumn";
    let shown = send(&guarded, &pol, later);
    assert_has(
        &shown,
        &[
            "write the present numbers once more with `until`",
            "To end them now, delete the standing override before",
            "rate=300/min</textarea>",
            "value=\"autumn\"",
            "Applies now: <strong>token_bucket 200/min",
        ],
    );
    let records = of_route(&guarded)["overrides"].clone();
    assert_eq!(
        (&records[0]["revision"], &records[1]),
        (&json!(1), &json!(null))
    );
}

#[test]
fn a_boost_goes_before_the_standing_override_until_it_is_deleted() {
    let guarded = Guarded::with_rules(RULES, "");
    let (pol, rea) = (guarded.log_in("pol"), guarded.log_in("rea"));
    send(
        &guarded,
        &pol,
        "action=set&numbers=rate%3D200%2Fmin%0D%0Aburst%3D150&reason=a+%3Csale%3E",
    );
    let boost = "action=set&standing=1&boost=0&numbers=plan%3Dgold&until=2h&reason=";
    let shown = send(&guarded, &pol, boost);
    assert_has(
        &shown,
        &[
            "Set: revision 2.",
            "<th scope=\"row\">boost, plan gold</th>",
        ],
    );
    let shown = page(&guarded, &rea);
    assert_has(
        &shown,
        &[
            "Applies now: <strong>token_bucket 300/min, burst 300</strong>",
            "standing",
        ],
    );
    assert!(
        !shown.contains("<form method=\"post\" action=\"/console/overrides"),
        "{shown}"
    );

    let list = guarded
        .ask(("GET", "/console/overrides?domain=shop", ""), &rea)
        .body;
    let row = "tenant=acme</a></td><td>api</td><td>burst 150, rate 200/min</td><td></td>\
               <td>a &#60;sale&#62;</td><td>pol</td><td>in force</td>";
    assert_has(&list, &[row, "<td>plan gold</td><td>until 20"]);

    let shown = send(
        &guarded,
        &pol,
        "action=delete-boost&standing=1&boost=2&numbers=x",
    );
    let command = "quell overrides delete shop api -e tenant=acme --which boost";
    assert_has(
        &shown,
        &[
            "Deleted: revision 3.",
            command,
            "150</strong>",
            "value=\"1\"",
        ],
    );
    assert!(!shown.contains("delete-boost"), "{shown}");
    assert_eq!(of_route(&guarded)["overrides"].as_array().unwrap().len(), 1);
    let overview = guarded.ask(("GET", "/console", ""), &rea).body;
    assert_has(
        &overview,
        &[
            "override set: api tenant=acme",
            "override deleted: api tenant=acme",
        ],
    );
}

/// Whoever comes second is told, has what was typed, and sees what there is now.
#[test]
fn nothing_is_overwritten_that_the_person_did_not_see() {
    let guarded = Guarded::with_rules(RULES, "");
    let (ada, pol) = (guarded.log_in("ada"), guarded.log_in("pol"));
    send(&guarded, &ada, "action=set&numbers=rate%3D200%2Fmin");
    let mine = "action=set&standing=0&boost=0&numbers=rate%3D7%2Fmin%0D%0Aburst%3D9&reason=mine&change=restart";
    for seen in [mine.to_owned(), mine.replace("standing=0", "standing=9")] {
        let shown = send(&guarded, &pol, &seen);
        assert_has(
            &shown,
            &["Somebody changed this override", "Set it all the same"],
        );
        assert_has(
            &shown,
            &["\nrate=7/min\nburst=9</textarea>", "value=\"mine\""],
        );
        assert_has(
            &shown,
            &["<option selected>restart", "name=\"standing\" value=\"1\""],
        );
        assert_has(&shown, &["<td>rate 200/min</td>"]);
    }
    let shown = send(
        &guarded,
        &pol,
        "action=delete-standing&standing=0&numbers=kept",
    );
    assert_has(
        &shown,
        &["Somebody changed this override", "\nkept</textarea>"],
    );
    assert_eq!(of_route(&guarded)["overrides"][0]["revision"], 1);
    // A boost beside it is another override.
    let boost = mine.replace("change=restart", "until=1h");
    assert_has(&send(&guarded, &pol, &boost), &["Set: revision 2."]);
    let again = mine.replace("standing=0", "standing=1");
    assert_has(&send(&guarded, &pol, &again), &["Set: revision 3."]);
}

/// What is refused is shown again as it was typed; what the person saw stays the condition of the next try.
#[test]
fn nothing_that_was_typed_about_an_override_is_lost() {
    let guarded = Guarded::with_rules(RULES, "");
    let ada = guarded.log_in("ada");
    send(&guarded, &ada, "action=set&numbers=rate%3D200%2Fmin");
    for (more, told) in [
        ("numbers=rate%3Dfast", "rule api: "),
        ("numbers=rate", "write FIELD=VALUE"),
        ("numbers=", "the numbers are missing"),
        ("numbers=plan%3Dnone", "none"),
        ("numbers=rate%3D1%2Fs&until=soon", "is no instant"),
        (
            "numbers=rate%3D1%2Fs&from=2020-01-01T00:00:00Z&change=halve",
            "write keep, prorate or restart",
        ),
    ] {
        let form = format!("action=set&standing=1&boost=4&reason=%3Cb%3Ewhy&{more}");
        let shown = send(&guarded, &ada, &form);
        assert_has(&shown, &[told, "value=\"&#60;b&#62;why\""]);
        let seen = [
            "name=\"standing\" value=\"1\"",
            "name=\"boost\" value=\"4\"",
        ];
        assert_has(&shown, &seen);
        for (name, typed) in url_pairs(more) {
            assert!(
                shown.contains(&typed) || name == "change",
                "{typed} is lost in {shown}"
            );
        }
    }
    let shown = send(&guarded, &ada, "action=rob&numbers=rate%3D1%2Fs");
    assert_has(
        &shown,
        &["write set, delete-boost", "\nrate=1/s</textarea>"],
    );
    for (key, told) in [
        ("domain=shop&rule=&entries=a%3Db", "the rule is missing"),
        ("domain=shop&rule=none&entries=a%3Db", "there is no rule"),
        ("domain=shop&rule=api&entries=a", "is not an entry"),
        (
            "domain=shop&rule=api&entries=user%3Deve",
            "has the entries tenant",
        ),
    ] {
        let target = format!("/console/overrides/key?{key}");
        assert_has(&guarded.ask(("GET", &target, ""), &ada).body, &[told]);
        let form = format!("{key}&action=set&numbers=refuse");
        let shown = guarded.ask(("POST", "/console/overrides/key", &form), &ada);
        assert_has(&shown.body, &[told, "\nrefuse</textarea>"]);
    }
}

fn url_pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| text.replace("%3D", "=").replace("%2F", "/");
    pairs
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect()
}

/// A limit of calendar days, and a plan that has one.
const DAYS: &str = "
domain: shop
plans: { gold: { api: { limit: 500 } } }
rules:
  - { name: api, per: [tenant], algorithm: fixed_window, limit: 100/day, align: calendar }
";

/// Sends the form about the key of [`ACME`] as the page has it, with some fields as they are written here.
fn resend(server: &Fixture, written: &[(&str, &str)]) -> String {
    let page = server.get(&format!("/console/overrides/key?{ACME}")).body;
    let (_, form) = page.split_once("<form method=\"post\"").unwrap();
    let mut fields: Vec<(String, String)> = Vec::new();
    for tag in form.split('<') {
        let of = |name: &str| {
            let value = tag.split_once(&format!("{name}=\"")).map(|(_, rest)| rest);
            value.and_then(|rest| rest.split('"').next())
        };
        let Some(name) = of("name") else { continue };
        let value = match tag.split_once('>') {
            Some((head, text)) if head.starts_with("textarea") => text.trim_start_matches('\n'),
            _ => of("value").unwrap_or_default(),
        };
        let value = value.replace("&#34;", "\"").replace("&#38;", "&");
        if name != "action" {
            fields.push((name.to_owned(), value));
        }
    }
    for (name, value) in written {
        fields.retain(|(other, _)| other != name);
        fields.push(((*name).to_owned(), (*value).to_owned()));
    }
    let pairs = { fields.iter() }.map(|(name, value)| format!("{name}={}", form_urlencoded(value)));
    let body = pairs.collect::<Vec<_>>().join("&") + "&action=set";
    let shown = request(
        server.http(),
        ("POST", "/console/overrides/key", &body),
        super::FORM,
    );
    assert_has(&shown.body, &["Set: revision "]);
    shown.body
}

fn stored(server: &Fixture) -> Value {
    let key = server.get("/v1/overrides/shop/api?tenant=acme").json();
    key["overrides"][0].clone()
}

/// The limit of this window was made of an old and a new one: another reason does not make it the new one.
#[test]
fn a_window_that_was_prorated_stays_so_while_the_numbers_stay() {
    let server = Fixture::with_clock(DAYS, "");
    resend(
        &server,
        &[("numbers", "limit=400/day"), ("change", "prorate")],
    );
    let window = json!({"limit": 123, "until": "2023-11-15T00:00:00Z"});
    assert_eq!(stored(&server)["prorated"], window);
    let later = Duration::from_secs(600);
    server.clock.as_ref().unwrap().advance(later);
    let shown = resend(&server, &[("reason", "contract <17>")]);
    let record = stored(&server);
    assert_eq!(
        (&record["prorated"], &record["reason"], &record["revision"]),
        (&window, &json!("contract <17>"), &json!(2))
    );
    assert_has(
        &shown,
        &["limit 400/day; in this window 123, until 2023-11-15T00:00:00Z"],
    );
    // The command that does the same has the window, too.
    assert_has(
        &shown,
        &[
            "printf &#39;%s\\n&#39; &#39;{",
            "&#34;prorated&#34;:{&#34;limit&#34;:123,&#34;until&#34;:&#34;2023-11-15T00:00:00Z&#34;}",
            "}&#39; | quell overrides import shop - ",
        ],
    );
    // The same numbers, written otherwise, and an end of their own.
    resend(
        &server,
        &[("numbers", "\n limit = 400/day \n"), ("until", "2h")],
    );
    let boost = server.get("/v1/overrides/shop/api?tenant=acme").json();
    assert_eq!(boost["overrides"][1]["prorated"], window, "{boost}");
}

/// A stored plan has an anchor and a time zone of its own, which the page shows and keeps.
#[test]
fn a_plan_keeps_its_anchor_and_its_time_zone() {
    let server = Fixture::with_clock(DAYS, "");
    let numbers = "plan=gold\r\nanchor=20:00\r\ntime_zone=Europe/Berlin";
    let shown = resend(&server, &[("numbers", numbers)]);
    let command = "quell overrides set shop api -e tenant=acme plan=gold anchor=20:00 time_zone=Europe/Berlin";
    let limit = "fixed_window 500 per calendar day from 20:00 in Europe/Berlin";
    assert_has(
        &shown,
        &[
            command,
            "<th scope=\"row\">standing override, plan gold</th>",
            &format!("Applies now: <strong>{limit}</strong>"),
            "\nanchor=20:00\nplan=gold\ntime_zone=Europe/Berlin</textarea>",
        ],
    );
    resend(&server, &[("reason", "since May")]);
    let record = stored(&server);
    for (member, value) in [
        ("plan", "gold"),
        ("anchor", "20:00"),
        ("time_zone", "Europe/Berlin"),
        ("reason", "since May"),
    ] {
        assert_eq!(record[member], value, "{record}");
    }
    let list = server.get("/console/overrides?domain=shop&plan=gold").body;
    assert_has(
        &list,
        &["<td>anchor 20:00, plan gold, time_zone Europe/Berlin</td>"],
    );
    for (numbers, told) in [
        ("plan=gold\nanchor=17", "anchor"),
        ("plan=gold\ntime_zone=Mars", "Mars"),
        ("plan=gold\nburst=7", "leave burst out"),
    ] {
        let form = format!(
            "{ACME}&action=set&standing=2&numbers={}",
            form_urlencoded(numbers)
        );
        let post = ("POST", "/console/overrides/key", &*form);
        let refused = request(server.http(), post, super::FORM).body;
        assert_has(&refused, &[told, &format!("\n{numbers}</textarea>")]);
    }
    assert_eq!(stored(&server)["revision"], 2);
}

/// Other numbers, and a key that begins anew, end the proration; it can be asked for again.
#[test]
fn a_window_that_was_prorated_goes_with_its_numbers() {
    for (written, expected) in [
        (
            [("numbers", "limit=500/day"), ("change", "keep")],
            json!(null),
        ),
        ([("numbers", "plan=gold"), ("change", "keep")], json!(null)),
        (
            [("numbers", "limit=400/day"), ("change", "restart")],
            json!(null),
        ),
        // 80,000 of 86,400 s at 100, and the rest at 900; rounded up twice.
        (
            [("numbers", "limit=900/day"), ("change", "prorate")],
            json!({"limit": 161, "until": "2023-11-15T00:00:00Z"}),
        ),
    ] {
        let server = Fixture::with_clock(DAYS, "");
        resend(
            &server,
            &[("numbers", "limit=400/day"), ("change", "prorate")],
        );
        let shown = resend(&server, &written);
        let record = stored(&server);
        let window = record.get("prorated").unwrap_or(&Value::Null);
        assert_eq!(*window, expected, "{written:?}: {record}");
        assert_has(&shown, &["quell overrides set shop api -e tenant=acme"]);
    }
}

#[test]
fn what_strangers_wrote_into_overrides_does_nothing() {
    let server = Fixture::new(RULES, "");
    let hostile = "\"><script>\u{202e}\u{1b}[2J";
    let key = format!(
        "domain=shop&rule=api&entries={}",
        form_urlencoded(&format!("tenant={hostile}"))
    );
    let form = format!(
        "{key}&action=set&numbers=refuse&reason={}",
        form_urlencoded(hostile)
    );
    let post = ("POST", "/console/overrides/key", &*form);
    let shown = request(server.http(), post, super::FORM);
    assert_has(&shown.body, &["Set: revision 1.", "&#8238;&#27;[2J"]);
    let list = server.get("/console/overrides?domain=shop");
    assert_has(&list.body, &["\\u{202e}\\u{1b}[2J</a>", "&#60;script&#62;"]);
    let filtered = format!(
        "/console/overrides?domain=shop&prefix={}",
        form_urlencoded(hostile)
    );
    for page in [
        shown,
        list,
        server.get(&format!("/console/overrides/key?{key}")),
        server.get(&filtered),
    ] {
        assert!(!page.body.contains("<script>"), "{page:?}");
        assert!(!page.body.contains(['\u{1b}', '\u{202e}']), "{page:?}");
        assert!(page.body.contains("[2J"), "{page:?}");
    }
}

/// A server with overrides: 150 that are alike, and three others.
fn with_many() -> Guarded {
    let guarded = Guarded::with_rules(RULES, "");
    let admin = { guarded.tokens.iter() }.find(|(role, _)| *role == Role::Admin);
    let fields = format!(
        "Authorization: Bearer {}\r\nContent-Type: application/x-ndjson\r\n",
        admin.unwrap().1.text()
    );
    let batch = |domain: &str, lines: &[Value]| {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let target = format!("/v1/overrides/batch?domain={domain}");
        let post = ("POST", &*target, &*body);
        assert_eq!(request(guarded.server.http(), post, &fields).status, 200);
    };
    let tenant = |n: usize| json!({"rule": "api", "entries": {"tenant": format!("t-{n:03}")}, "rate": "5/s"});
    let mut lines: Vec<Value> = (0..150).map(tenant).collect();
    lines.push(json!({"rule": "api", "entries": {"tenant": "acme"}, "plan": "gold"}));
    lines.push(json!({"rule": "*", "entries": {"tenant": "every & all"}, "unlimited": true}));
    batch("shop", &lines);
    batch(
        "bank",
        &[json!({"rule": "api", "entries": {"tenant": "vault"}, "refuse": true})],
    );
    guarded
}

#[test]
fn a_list_is_filtered_and_goes_on_where_the_page_before_ended() {
    let guarded = with_many();
    let rea = guarded.log_in("rea");
    let ask = |target: &str, cookie: &str| guarded.ask(("GET", target, ""), cookie).body;
    let rows = |page: &str| page.matches("<td class=\"key\">").count();
    let mut target = "/console/overrides?domain=shop&rule=api&prefix=t-".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = ask(&target, &rea);
        seen.push(rows(&page));
        let Some((before, _)) = page.split_once("\">Next page") else {
            break;
        };
        let next = before.rsplit_once("href=\"").unwrap().1;
        target = next.replace("&#38;", "&");
        assert!(
            target.contains("domain=shop&rule=api&prefix=t-&cursor="),
            "{target}"
        );
    }
    assert_eq!(seen, [100, 50]);
    for (filter, shown) in [
        ("domain=shop&plan=gold", "<td>plan gold</td>"),
        (
            "domain=shop&rule=*",
            "<td>every rule</td><td>unlimited</td>",
        ),
        ("domain=bank", "<td>refused</td>"),
        (
            "domain=bank&rule=&plan=&prefix=&cursor=",
            "<td>refused</td>",
        ),
    ] {
        let page = ask(&format!("/console/overrides?{filter}"), &rea);
        assert_eq!(rows(&page), 1, "{filter}: {page}");
        assert_has(&page, &[shown, "in force"]);
    }
}

#[test]
fn a_list_leads_to_keys_and_stays_within_the_domains_of_who_asks() {
    let guarded = with_many();
    let rea = guarded.log_in("rea");
    let ask = |target: &str, cookie: &str| guarded.ask(("GET", target, ""), cookie).body;
    // The link of a row leads to its key.
    let page = ask("/console/overrides?domain=shop&rule=*", &rea);
    let (_, link) = page.split_once("<td class=\"key\"><a href=\"").unwrap();
    let link = link.split('"').next().unwrap().replace("&#38;", "&");
    assert_has(
        &ask(&link, &rea),
        &["tenant=every &#38; all", "<td>unlimited</td>"],
    );
    for (target, told) in [
        ("/console/overrides?domain=none", "there is no domain"),
        (
            "/console/overrides?domain=shop&cursor=x",
            "the cursor is not of this list",
        ),
    ] {
        assert_has(&ask(target, &rea), &[told]);
    }
    let bo = guarded.log_in("bo");
    let page = ask("/console/overrides", &bo);
    assert!(
        page.contains("tenant=vault") && !page.contains("shop"),
        "{page}"
    );
    for target in [
        "/console/overrides?domain=shop",
        &*format!("/console/overrides/key?{ACME}"),
    ] {
        let page = ask(target, &bo);
        assert!(
            page.contains("is not for the domain") && !page.contains("gold"),
            "{page}"
        );
    }
}

#[test]
fn a_node_of_a_fleet_without_a_coordinator_says_why_it_shows_no_overrides() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    let node =
        format!("fleet = ['http://{address}']\nfleet_member = 'node-7'\ndata_dir = 'DIR/data'");
    let server = Fixture::new(RULES, &node);
    let page = server.get(&format!("/console/overrides/key?{ACME}")).body;
    assert_has(&page, &["no coordinator answers"]);
    assert!(
        !page.contains("method=\"post\" action=\"/console/overrides"),
        "{page}"
    );
}
