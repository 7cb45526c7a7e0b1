//! Headers of gateways as queries.

use quell_core::address::network;
use quell_core::descriptor::Query;
use quell_core::forwarded::ProxyTrust;
use quell_core::query_bounds::QueryError;
use quell_protocol::http::{AuthorizeError, AuthorizeMap, Problem, authorize};

fn ask<'a>(
    headers: &'a [(&'a str, &'a str)],
    map: &'a AuthorizeMap,
) -> Result<Query<'a>, AuthorizeError> {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()));
    authorize("shop", headers, map)
}

/// The entries as `name=value`, separated by spaces.
fn entries(headers: &[(&str, &str)], map: &AuthorizeMap) -> String {
    let query = ask(headers, map).unwrap();
    assert_eq!(query.domain(), "shop");
    assert_eq!(query.descriptors().len(), 1);
    let entries: Vec<String> = query.descriptors()[0]
        .entries()
        .iter()
        .map(|entry| format!("{}={}", entry.name, String::from_utf8_lossy(&entry.value)))
        .collect();
    entries.join(" ")
}

#[test]
fn what_gateways_send() {
    let nginx: &[(&str, &str)] = &[
        ("host", "127.0.0.1:8080"),
        ("x-original-method", "POST"),
        ("x-original-uri", "/login?next=/"),
        ("x-real-ip", "192.0.2.7"),
        ("user-agent", "curl"),
    ];
    let traefik: &[(&str, &str)] = &[
        ("x-forwarded-method", "GET"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-uri", "/api/items?page=2"),
        ("x-forwarded-for", "203.0.113.9, 192.0.2.7"),
    ];
    let caddy: &[(&str, &str)] = &[
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "shop.example"),
    ];
    let ingress: &[(&str, &str)] = &[
        ("x-original-url", "https://shop.example/login?x=1"),
        ("x-original-method", "POST"),
        ("x-real-ip", "2001:db8::1"),
    ];
    let none: &[(&str, &str)] = &[("host", "127.0.0.1:8080")];
    for (headers, expected) in [
        (nginx, "method=POST path=/login remote_address=192.0.2.7"),
        (
            traefik,
            "method=GET path=/api/items host=shop.example remote_address=192.0.2.7",
        ),
        (
            caddy,
            "method=GET path=/ host=shop.example remote_address=203.0.113.9",
        ),
        (
            ingress,
            "method=POST path=/login remote_address=2001:db8::1",
        ),
        (none, ""),
    ] {
        assert_eq!(entries(headers, &AuthorizeMap::default()), expected);
    }
    assert_eq!(
        entries(nginx, &AuthorizeMap::original()),
        entries(nginx, &AuthorizeMap::default())
    );
    assert_eq!(
        entries(traefik, &AuthorizeMap::forwarded()),
        entries(traefik, &AuthorizeMap::default())
    );
    assert_eq!(entries(traefik, &AuthorizeMap::original()), "");
}

#[test]
fn addresses_are_read_from_lists() {
    for (value, expected) in [
        ("192.0.2.7", "192.0.2.7"),
        ("10.0.0.1, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1,192.0.2.7 ", "192.0.2.7"),
        ("192.0.2.7:51234", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("a, unknown", "unknown"),
        ("[nonsense]:1", "[nonsense]:1"),
    ] {
        assert_eq!(
            entries(&[("x-forwarded-for", value)], &AuthorizeMap::default()),
            format!("remote_address={expected}"),
            "{value}"
        );
    }
}

/// A line that the caller sent comes before the line that the gateway appends.
#[test]
fn the_last_line_counts() {
    let headers = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    assert_eq!(
        entries(&headers, &AuthorizeMap::default()),
        "remote_address=192.0.2.7"
    );
}

#[test]
fn real_ip_comes_before_forwarded_for() {
    let headers = [("x-forwarded-for", "1.1.1.1"), ("x-real-ip", "192.0.2.7")];
    assert_eq!(
        entries(&headers, &AuthorizeMap::default()),
        "remote_address=192.0.2.7"
    );
    assert_eq!(
        entries(&headers, &AuthorizeMap::forwarded()),
        "remote_address=1.1.1.1"
    );
    let empty = [("x-forwarded-for", "1.1.1.1"), ("x-real-ip", " ")];
    assert_eq!(
        entries(&empty, &AuthorizeMap::default()),
        "remote_address=1.1.1.1"
    );
}

/// A caller that adds the other gateway's header to impersonate someone is refused.
#[test]
fn sources_that_contradict_each_other_are_refused() {
    let headers = [
        ("x-forwarded-uri", "/login"),
        ("x-original-uri", "/harmless"),
    ];
    let error = ask(&headers, &AuthorizeMap::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "x-original-uri and x-forwarded-uri are both there and differ: have the gateway overwrite or drop the one that it does not send"
    );
    assert_eq!(entries(&headers, &AuthorizeMap::forwarded()), "path=/login");
    let problem = Problem::from(&error);
    assert_eq!(problem.kind, "urn:quell:problem:invalid-request");
    assert_eq!(problem.detail, Some(error.to_string()));
    let same = [
        ("x-forwarded-uri", "/login?a"),
        ("x-original-uri", "/login"),
    ];
    assert_eq!(entries(&same, &AuthorizeMap::default()), "path=/login");
}

#[test]
fn spellings_of_one_path_are_one() {
    for uri in [
        "/login",
        "//login",
        "/%6cogin",
        "/a/../login",
        "/./login?x",
        "/login?x#y",
        "/login/",
        "/login;a=1",
        "/login%3Ba=1?x",
        "/a/%2e%2e//login/;b",
    ] {
        assert_eq!(
            entries(&[("x-original-uri", uri)], &AuthorizeMap::default()),
            "path=/login",
            "{uri}"
        );
    }
}

#[test]
fn spellings_of_one_host_are_one() {
    for host in [
        "shop.example",
        "SHOP.example",
        "shop.example:8443",
        "shop.example.",
        "Shop.Example.:80",
    ] {
        let headers = [("x-forwarded-host", host)];
        let expected = "host=shop.example";
        assert_eq!(
            entries(&headers, &AuthorizeMap::default()),
            expected,
            "{host}"
        );
    }
    let v6 = [("x-forwarded-host", "[2001:DB8::1]:443")];
    assert_eq!(entries(&v6, &AuthorizeMap::default()), "host=[2001:db8::1]");
}

/// No rule can match a character that one server takes for a slash and another does not.
#[test]
fn paths_that_servers_disagree_about_are_refused() {
    for uri in [
        "/%2flogin",
        "/a/..%2flogin",
        "/%00",
        "/%zz",
        "/a/..;/login",
        "/free#/../login",
    ] {
        let headers = [("x-original-uri", uri)];
        let error = ask(&headers, &AuthorizeMap::default()).unwrap_err();
        assert!(matches!(error, AuthorizeError::Path { .. }), "{uri}");
    }
    let other = [("x-original-uri", "/login%20")];
    assert_eq!(
        entries(&other, &AuthorizeMap::default()),
        "path=/login%20",
        "another page than /login"
    );
    let mut small = AuthorizeMap::default();
    small.path.ignore_case = true;
    assert_eq!(
        entries(&[("x-original-uri", "/LOGIN")], &small),
        "path=/login"
    );
}

/// Some applications take `post` for `POST`, and some gateways pass it on.
#[test]
fn methods_are_read_in_capitals() {
    let map = AuthorizeMap::default();
    for method in ["POST", "post", "Post"] {
        let headers = [("x-forwarded-method", method)];
        assert_eq!(entries(&headers, &map), "method=POST", "{method}");
    }
    let same = [("x-forwarded-method", "get"), ("x-original-method", "GET")];
    assert_eq!(entries(&same, &map), "method=GET");
}

/// Whichever header a gateway uses, a path is read in one spelling, and so are the other entries.
#[test]
fn known_entries_are_read_alike_from_every_header() {
    let map = AuthorizeMap::default();
    let headers = [
        ("x-quell-entry-path", "//%6cogin/?x=1"),
        ("x-quell-entry-method", "post"),
        ("x-quell-entry-host", "SHOP.example:80"),
        ("x-quell-entry-remote_address", "10.0.0.1, 192.0.2.7:5"),
        ("x-quell-entry-note", "//A/"),
    ];
    assert_eq!(
        entries(&headers, &map),
        "path=/login method=POST host=shop.example remote_address=192.0.2.7 note=//A/"
    );
    let refused = ask(&[("x-quell-entry-path", "/%2flogin")], &map).unwrap_err();
    assert!(matches!(refused, AuthorizeError::Path { .. }), "{refused}");
}

#[test]
fn entries_of_their_own() {
    let headers = [
        ("x-original-method", "POST"),
        ("x-quell-entry-tenant", "acme"),
        ("x-quell-entry-user-id", "7"),
        ("x-quell-entry-method", "GET"),
        ("x-quell-entry-remote_address", "192.0.2.7"),
        ("x-quell-entr", "x"),
    ];
    assert_eq!(
        entries(&headers, &AuthorizeMap::default()),
        "method=POST tenant=acme user-id=7 remote_address=192.0.2.7"
    );
    let without = AuthorizeMap {
        prefix: None,
        ..AuthorizeMap::default()
    };
    assert_eq!(entries(&headers, &without), "method=POST");
}

#[test]
fn wrong_headers() {
    let map = AuthorizeMap::default();
    let twice = [("x-quell-entry-a", "1"), ("x-quell-entry-a", "2")];
    assert_eq!(
        ask(&twice, &map),
        Err(AuthorizeError::Twice("x-quell-entry-a".to_owned()))
    );
    assert_eq!(
        ask(&[("x-quell-entry-", "1")], &map),
        Err(AuthorizeError::Query(QueryError::EmptyName))
    );
    let long = format!("/{}", "x".repeat(9_000));
    assert_eq!(
        ask(&[("x-original-uri", &long)], &map),
        Err(AuthorizeError::Query(QueryError::LongValue(
            "path".to_owned()
        )))
    );
    let none = std::iter::empty::<(&str, &[u8])>();
    assert_eq!(
        authorize("", none, &map),
        Err(AuthorizeError::Query(QueryError::EmptyDomain))
    );
}

/// A gateway that appends its peer, and trusts the proxies in these networks.
fn behind(networks: &[&str]) -> AuthorizeMap {
    let networks = networks.iter().map(|text| network(text).unwrap());
    AuthorizeMap {
        proxies: ProxyTrust::networks(networks.collect()),
        ..AuthorizeMap::forwarded()
    }
}

#[test]
fn trusted_proxies_are_not_the_caller() {
    let map = behind(&["10.0.0.0/8", "2001:db8:cd::/48", "192.0.2.1"]);
    for (lines, expected) in [
        (&["203.0.113.7, 10.0.0.2"][..], "203.0.113.7"),
        // Two callers behind one proxy are two, and what a caller writes first changes nothing.
        (&["203.0.113.8, 10.0.0.2"], "203.0.113.8"),
        (&["1.1.1.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        (&["10.9.9.9, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        // A proxy that is not trusted is a caller.
        (&["203.0.113.7, 198.51.100.1"], "198.51.100.1"),
        (
            &["203.0.113.7, 2001:db8:cd::1, 192.0.2.1, 10.0.0.2"],
            "203.0.113.7",
        ),
        // Doubled headers.
        (&["1.1.1.1", "203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        (&["203.0.113.7, 10.0.0.3", "10.0.0.2"], "203.0.113.7"),
        (&["203.0.113.7", "", "10.0.0.2"], "203.0.113.7"),
        // Ports, brackets, mapped and zoned addresses, NAT64.
        (&["203.0.113.7:4711, 10.0.0.2:80"], "203.0.113.7"),
        (&["[2001:db8::1]:4711, [2001:db8:cd::1]"], "2001:db8::1"),
        (&["::ffff:203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
        (&["64:ff9b::203.0.113.7, 64:ff9b::a00:2"], "203.0.113.7"),
        (&["fe80::1%eth0, 10.0.0.2"], "fe80::1"),
        // Where the chain ends, the proxy that ends it is the caller.
        (&["10.0.0.2"], "10.0.0.2"),
        (&["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
        (&["203.0.113.7, \"10.0.0.3\", 10.0.0.2"], "10.0.0.2"),
        (&[", , 203.0.113.7 ,, 10.0.0.2 ,"], "203.0.113.7"),
    ] {
        let headers = lines.iter().map(|line| ("x-forwarded-for", *line));
        let headers: Vec<_> = headers.collect();
        let expected = format!("remote_address={expected}");
        assert_eq!(entries(&headers, &map), expected, "{lines:?}");
    }
}

#[test]
fn so_many_hops_are_skipped_whatever_their_addresses() {
    let hops = |hops| AuthorizeMap {
        proxies: ProxyTrust::nearest(hops),
        ..AuthorizeMap::forwarded()
    };
    let both = |hops| AuthorizeMap {
        proxies: behind(&["10.0.0.0/8"]).proxies.at_most(hops),
        ..AuthorizeMap::forwarded()
    };
    let chain = "1.1.1.1, 203.0.113.7, 198.51.100.1, 10.0.0.2";
    for (map, chain, expected) in [
        (hops(0), chain, "10.0.0.2"),
        (hops(1), chain, "198.51.100.1"),
        (hops(2), chain, "203.0.113.7"),
        (hops(2), "203.0.113.7", "203.0.113.7"),
        (both(1), chain, "198.51.100.1"),
        (both(2), chain, "198.51.100.1"),
        (both(1), "203.0.113.7, 10.0.0.3, 10.0.0.2", "10.0.0.3"),
    ] {
        let found = entries(&[("x-forwarded-for", chain)], &map);
        assert_eq!(found, format!("remote_address={expected}"), "{chain}");
    }
}

/// `Forwarded` counts only where the map names it: a gateway that does not write it passes it on.
#[test]
fn the_forwarded_header_is_read_where_it_is_named() {
    let chain = "for=1.1.1.1, for=\"[2001:db8::1]:4711\";proto=https, for=10.0.0.2;by=_gateway";
    let mut map = behind(&["10.0.0.0/8"]);
    let lies = [("forwarded", chain), ("x-forwarded-for", "203.0.113.7")];
    assert_eq!(entries(&lies, &map), "remote_address=203.0.113.7");
    let source = map.entries.iter_mut();
    for source in source.filter(|source| source.entry == "remote_address") {
        source.headers = vec!["forwarded".to_owned()];
    }
    assert_eq!(entries(&lies, &map), "remote_address=2001:db8::1");
    let two = [
        ("forwarded", "for=203.0.113.7"),
        ("forwarded", "for=10.0.0.2"),
    ];
    assert_eq!(entries(&two, &map), "remote_address=203.0.113.7");
}

/// With trusted proxies a second address can only be a caller's lie, as for methods and paths.
#[test]
fn behind_proxies_sources_of_the_address_agree() {
    let mut map = behind(&["10.0.0.0/8"]);
    map.entries = AuthorizeMap::default().entries;
    let chain = ("x-forwarded-for", "203.0.113.7, 10.0.0.2");
    let same = [("x-real-ip", "203.0.113.7"), chain];
    assert_eq!(entries(&same, &map), "remote_address=203.0.113.7");
    let lie = [("x-real-ip", "1.1.1.1"), chain];
    let error = ask(&lie, &map).unwrap_err();
    assert!(matches!(error, AuthorizeError::Conflict { .. }), "{error}");
}
