//! One rule of a text changed in place: every other byte stays.

use quell_rules::{Assignment, EditError, set_fields};

/// Everything that an editor could break: comments, quotes, both notations, a second document,
/// lines that end as Windows ends them, letters of several bytes.
const TEXT: &str = "# Größe, 日本 \ndomain: shop   # ours\ndefaults: {shadow: false}\nrules:\n\
    \x20 # who logs in\n\
    \x20 - name: \"login\"   # by address\r\n\
    \x20   per: [{remote_address: {v4: 32}}]\n\
    \x20   algorithm: sliding_log   # exact\n\
    \x20   limit: 5/min# no comment\n\n\
    \x20 - { name: api, per: [tenant], rate: 100/s, burst: 200 }   # all\n\
    \x20 -   rate:   &slow   1/s # anchored\n\
    \x20     name: batch\n\
    \x20     match:\n\x20       path: /a\n\
    \x20 - {name: copy, rate: *slow}\n\
    ---\n\
    # another\ndomain: bar\nrules:\n- name: api\n  rate: 1/s";

fn set(domain: Option<&str>, rule: &str, set: &[&str]) -> Result<String, EditError> {
    let text = TEXT.replace("5/min# no comment", "5/min");
    let set: Vec<Assignment> = set.iter().map(|text| text.parse().unwrap()).collect();
    set_fields("shop.yaml", &text, domain, rule, &set).map(|edited| edited.text)
}

/// The lines of the text that have changed.
fn differing(edited: &str) -> Vec<(String, String)> {
    let text = TEXT.replace("5/min# no comment", "5/min");
    let (old, new): (Vec<&str>, Vec<&str>) =
        (text.split('\n').collect(), edited.split('\n').collect());
    let first = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = (&old[first..], &new[first..]);
    let last = rest.0.iter().rev().zip(rest.1.iter().rev());
    let last = last.take_while(|(a, b)| a == b).count();
    let cut = |lines: &[&str]| lines[first..lines.len() - last].join("|");
    vec![(cut(&old), cut(&new))]
}

#[test]
fn a_value_changes_where_it_stands() {
    for (domain, rule, fields, old, new) in [
        (
            None,
            "login",
            &["limit=9/min"][..],
            "    limit: 5/min",
            "    limit: 9/min",
        ),
        (
            Some("shop"),
            "api",
            &["burst=7", "rate=50/s"],
            "  - { name: api, per: [tenant], rate: 100/s, burst: 200 }   # all",
            "  - { name: api, per: [tenant], rate: 50/s, burst: 7 }   # all",
        ),
        (
            Some("shop"),
            "api",
            &["per=[tenant, user]"],
            "  - { name: api, per: [tenant], rate: 100/s, burst: 200 }   # all",
            "  - { name: api, per: [tenant, user], rate: 100/s, burst: 200 }   # all",
        ),
        (
            Some("bar"),
            "api",
            &["rate=1000/day"],
            "  rate: 1/s",
            "  rate: 1000/day",
        ),
        (
            None,
            "copy",
            &["rate=9/s"],
            "  - {name: copy, rate: *slow}",
            "  - {name: copy, rate: 9/s}",
        ),
    ] {
        let edited = set(domain, rule, fields).unwrap();
        assert_eq!(differing(&edited), [(old.to_owned(), new.to_owned())]);
    }
}

#[test]
fn a_new_field_stands_where_its_kind_stands() {
    for (domain, rule, fields, old, new) in [
        (
            None,
            "login",
            &["shadow=true", "ban={after: 3, within: 10m, for: 1m}"][..],
            "",
            "    shadow: true|    ban: {after: 3, within: 10m, for: 1m}",
        ),
        (
            Some("shop"),
            "api",
            &["shadow=true"],
            "  - { name: api, per: [tenant], rate: 100/s, burst: 200 }   # all",
            "  - { name: api, per: [tenant], rate: 100/s, shadow: true, burst: 200 }   # all",
        ),
        (None, "batch", &["burst=5"], "", "      burst: 5"),
        (Some("bar"), "api", &["burst=5"], "", "  burst: 5"),
    ] {
        let edited = set(domain, rule, fields).unwrap();
        assert_eq!(differing(&edited), [(old.to_owned(), new.to_owned())]);
    }
}

#[test]
fn a_line_ends_as_its_neighbours_do() {
    let text = "domain: d\r\nrules:\r\n- name: a # c\r\n  unlimited: true\r\n  per: [x]\r\n  overrides: [{when: {x: y}, rate: 1/s}]\r\n";
    let cost = "cost=3".parse().unwrap();
    let edited = set_fields("f", text, None, "a", &[cost]).unwrap();
    assert_eq!(edited.text, text.replace("# c\r\n", "# c\r\n  cost: 3\r\n"));
}

/// Overrides in lines and in braces, with comments.
const OVERRIDES: &str = "domain: d\nrules:\n\
    - name: api\n\
    \x20 per: [tenant]\n\
    \x20 rate: 100/s\n\
    \x20 overrides: # for some\n\
    \x20   - { when: { tenant: acme }, rate: 1000/s } # pays\n\
    \x20   - when: { tenant: dev }\n\
    \x20     burst: 20   # few\n\
    \x20   - when:\n\x20         tenant: night\n\x20     unlimited: true\n\
    - { name: other, rate: &r 1/s, overrides: &o [{ when: { a: b }, rate: *r }] }\n\
    - { name: third, rate: 3/s, overrides: *o }\n\
    - { name: plain, rate: 1/s }\n";

#[test]
fn a_field_of_an_override_changes_where_it_stands() {
    for (fields, old, new) in [
        (
            &["overrides[0].rate=5/s"][..],
            "acme }, rate: 1000/s }",
            "acme }, rate: 5/s }",
        ),
        (
            &["overrides[0].burst=7", "overrides[1].rate=5/s", "rate=9/s"],
            "rate: 100/s\n  overrides: # for some\n    - { when: { tenant: acme }, rate: 1000/s } # pays\n    - when: { tenant: dev }\n      burst: 20   # few\n",
            "rate: 9/s\n  overrides: # for some\n    - { when: { tenant: acme }, rate: 1000/s, burst: 7 } # pays\n    - when: { tenant: dev }\n      burst: 20   # few\n      rate: 5/s\n",
        ),
        (
            &["overrides[1].when={tenant: test}"],
            "{ tenant: dev }",
            "{tenant: test}",
        ),
    ] {
        let set: Vec<Assignment> = fields.iter().map(|text| text.parse().unwrap()).collect();
        let edited = set_fields("f", OVERRIDES, None, "api", &set).unwrap();
        assert_eq!(edited.text, OVERRIDES.replace(old, new));
    }
}

#[test]
fn an_override_that_cannot_be_set_says_what_to_do() {
    for (rule, fields, expected) in [
        (
            "api",
            &["overrides[3].rate=1/s"][..],
            "`overrides[3].rate`: the last override is overrides[2]; to add one, pull the rules",
        ),
        (
            "plain",
            &["overrides[0].rate=1/s"],
            "the rule has no overrides: write all that it shall have, as in 'overrides=[{when: ",
        ),
        (
            "third",
            &["overrides[0].rate=1/s"],
            "`overrides[0].rate` is written by way of an alias: pull the rules",
        ),
        (
            "other",
            &["overrides[0].rate=2/s"],
            "d/third would change as well",
        ),
        (
            "api",
            &["overrides[2].rate=1/s"],
            "`overrides[2].rate` is written nowhere yet: pull the rules",
        ),
        (
            "api",
            &["overrides[2].when={tenant: day}"],
            "`overrides[2].when` is written in lines of its own: pull the rules",
        ),
        (
            "plain",
            &["overrides[0].rate=1/s", "overrides=[]"],
            "`overrides` appears twice",
        ),
        (
            "api",
            &["overrides[0].rate=1/s", "overrides[0].rate=2/s"],
            "`overrides[0].rate` appears twice",
        ),
        (
            "api",
            &["overrides[0].rate=x"],
            "rules[0].overrides[0].rate: ",
        ),
        (
            "api",
            &["overrides[0].name=x"],
            "rules[0].overrides[0].name: unknown field `name`",
        ),
    ] {
        let set: Vec<Assignment> = fields.iter().map(|text| text.parse().unwrap()).collect();
        let error = set_fields("f", OVERRIDES, None, rule, &set).unwrap_err();
        assert!(error.to_string().contains(expected), "{fields:?}: {error}");
    }
}

/// The words of the rule parser, with the place of the mistake.
#[test]
fn a_wrong_field_or_value_is_told_as_in_a_file() {
    for (fields, expected) in [
        (
            &["brust=5"][..],
            "unknown field `brust`, did you mean `burst`?",
        ),
        (&["rung=local-ish"], "unknown value `local-ish`"),
        (&["algorithm=sliding_log"], "rules[1].rate: "),
    ] {
        let error = set(Some("shop"), "api", fields).unwrap_err();
        assert!(matches!(error, EditError::After(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    // A number without its period is told with the one that it had.
    let error = set(Some("shop"), "api", &["rate=100"]).unwrap_err();
    let told = "`rate=100` has no period, and it was `100/s`: write `rate=100/s`";
    assert_eq!(error.to_string(), told);
}

#[test]
fn what_cannot_be_set_says_what_to_do() {
    for (domain, rule, fields, expected) in [
        (
            None,
            "api",
            &["rate=1/s"][..],
            "several domains have a rule `api`: say which with --domain, one of shop, bar",
        ),
        (
            None,
            "logins",
            &["rate=1/s"],
            "no rule `logins`, did you mean `login`?",
        ),
        (
            Some("bar"),
            "login",
            &["rate=1/s"],
            "no rule `login`: write the name of one that is there",
        ),
        (
            None,
            "login",
            &["limit=1/s", "limit=2/s"],
            "`limit` appears twice",
        ),
        (
            None,
            "login",
            &["name=other"],
            "a rule with another name is another rule",
        ),
        (
            None,
            "batch",
            &["match={path: /b}"],
            "`match` is written in lines of its own: pull the rules, edit them and push them",
        ),
        (
            None,
            "batch",
            &["rate=7/s"],
            "shop/copy would change as well: pull the rules",
        ),
    ] {
        let error = set(domain, rule, fields).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let aliased = "domain: d\nrules: &r\n- {name: a, rate: 1/s}\n---\ndomain: &n e\ndefaults: {}\nrules: [{name: x, rate: 1/s}]\n---\ndomain: !!str f\n";
    let error = set_fields("f", aliased, None, "x", &["rate=2/s".parse().unwrap()]).unwrap_err();
    assert!(error.to_string().contains("mistakes already"), "{error}");
}

proptest::proptest! {
    /// Whatever the rest of the text contains: nothing panics, and nothing but the one rule
    /// changes.
    #[test]
    fn no_text_is_changed_elsewhere(
        at in 0..TEXT.len(),
        inserted in "[ \\n\\r\\t{}\\[\\],:#&*a-c\"'|>%!-]{0,6}",
        field in "rate|burst|limit|per|ban|match",
        value in "[a-c0-9/\\[\\]{}\"' :,#*]{1,8}",
    ) {
        let text = TEXT.replace("5/min# no comment", "5/min");
        let rules = [("shop", "login"), ("shop", "batch"), ("bar", "api")];
        changes_one_rule(&text, (at, &inserted), &format!("{field}={value}"), &rules);
    }

    /// The same for overrides.
    #[test]
    fn no_text_is_changed_beside_an_override(
        at in 0..OVERRIDES.len(),
        inserted in "[ \\n\\r\\t{}\\[\\],:#&*a-c\"'|>%!-]{0,6}",
        index in 0..4,
        field in "rate|burst|when|limit",
        value in "[a-c0-9/\\[\\]{}\"' :,#*]{1,8}|[0-9]|[0-9]/s|[{]tenant: [a-z][}]",
    ) {
        let assignment = format!("overrides[{index}].{field}={value}");
        let rules = ["api", "other", "third"].map(|rule| ("d", rule));
        changes_one_rule(OVERRIDES, (at, &inserted), &assignment, &rules);
    }
}

const PLANS: &str = "domain: d
plans: # ours
  free: &f { api: { rate: 1/s, burst: 2 }, b: &b { max: 3 } }
  gold:
    api:
      rate: 9/s # paid
    b: *b
rules:
  - { name: api, per: [t], rate: 5/s, plan: { entry: plan } }
  - { name: b, algorithm: concurrency, max: 2 }
";

proptest::proptest! {
    /// The same for plans.
    #[test]
    fn no_text_is_changed_beside_a_plan(
        at in 0..PLANS.len(),
        inserted in "[ \\n\\r\\t{}\\[\\],:#&*a-c\"'|>%!-]{0,6}",
        plan in "free|gold",
        rule in "api|b",
        field in "rate|burst|max",
        value in "[a-c0-9/\\[\\]{}\"' :,#*]{1,8}|[0-9]|[0-9]/s",
    ) {
        let assignment = format!("plans.{plan}.{rule}.{field}={value}");
        let rules = ["api", "b"].map(|rule| ("d", rule));
        changes_one_rule(PLANS, (at, &inserted), &assignment, &rules);
    }
}

/// Sets a field in `text` after inserting something, and checks that at most one rule changes.
fn changes_one_rule(text: &str, inserted: (usize, &str), assignment: &str, rules: &[(&str, &str)]) {
    let (mut text, (at, inserted)) = (text.to_owned(), inserted);
    let at = (0..=at).rev().find(|at| text.is_char_boundary(*at));
    text.insert_str(at.unwrap_or(0), inserted);
    let Ok(assignment) = assignment.parse::<Assignment>() else {
        return;
    };
    for (domain, rule) in rules {
        let set = std::slice::from_ref(&assignment);
        let Ok(edited) = set_fields("f", &text, Some(domain), rule, set) else {
            continue;
        };
        let read = quell_rules::parse_str("f", &edited.text).unwrap();
        assert_eq!(&read.domains, &edited.after.domains);
        let before = &edited.before.domains;
        let changes = quell_rules::RuleChanges::between_domains(before, &read.domains);
        assert!(changes.rules().len() <= 1, "{changes}");
    }
}

/// A count in place of a count per period: the message has the period that the rule has.
#[test]
fn a_period_is_not_lost() {
    let text = "domain: d\nrules:\n  - { name: a, algorithm: sliding_log, limit: 30/10s }\n  - { name: b, rate: 5/min }\n";
    let set = |rule: &str, fields: &[&str]| {
        let fields: Vec<Assignment> = fields.iter().map(|field| field.parse().unwrap()).collect();
        set_fields("f", text, None, rule, &fields).map_err(|error| error.to_string())
    };
    assert_eq!(
        set("a", &["limit=20"]).unwrap_err(),
        "`limit=20` has no period, and it was `30/10s`: write `limit=20/10s`"
    );
    assert_eq!(
        set("b", &["rate=7"]).unwrap_err(),
        "`rate=7` has no period, and it was `5/min`: write `rate=7/min`"
    );
    let edited = set("a", &["limit=20", "window=5s"]).unwrap().text;
    assert!(
        edited.contains("window: 5s") && !edited.contains("30/10s"),
        "{edited}"
    );
    assert!(
        set("a", &["limit=20/1m"])
            .unwrap()
            .text
            .contains("limit: 20/1m")
    );
}
