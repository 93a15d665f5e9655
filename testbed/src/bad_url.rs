//! URLs with a password and an error, for tests that no output contains the password.

/// A URL of a server, in which something is wrong more often than not.
#[derive(Clone, Debug)]
pub struct BadUrl {
    /// The URL, or a text that was meant to be one.
    pub url: String,
    /// The password in the URL, as it is written there.
    pub password: String,
}

/// The URL of another master, in the same test.
pub const OTHER_URL: &str = "redis://10.9.9.9";

/// Letters and digits that make four characters of a password unlikely in any other text, and impossible in the text of
/// a test URL around the password. So there is no 9: ports and addresses in test URLs contain `9999` and `.9.9`.
const LETTERS: &[char] = &['Q', 'X', 'Z', 'J', 'K', 'W', 'V', '7', 'G', '8', 'ß', 'é'];
/// Characters that have a meaning in URLs, in messages or in configuration files.
const SPECIAL: &[char] = &[
    ' ', '\t', '\n', '\u{a0}', '@', '/', '?', '#', ':', '%', '&', '=', '+', ',', ';', '\'', '"',
    '\\', '[', ']', '(', '{', '|', '$', '!', '.', '`',
];
const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "valkey",
    "unix",
    "mysql",
    "mysqls",
    "mysql+tls",
    "mariadb",
    "zk",
    "zks",
    "zk+tls",
    "postgres",
    "etcd",
    "etcd+tls",
    "http",
    "",
];
/// Where the password `P` is: `S` stands for the scheme.
const SHAPES: &[&str] = &[
    "S://bob:P@127.0.0.1:port/db",
    "S://bob:P@127.0.0.1:99999/db",
    "S://bob:P@",
    "S://bob:P@/db",
    "S://:P@127.0.0.1:1",
    "S://bob:P@127.0.0.1:1/",
    "S://bob:P@127.0.0.1:1//db/..",
    "S://bob:P@127.0.0.1:1/db?colour=red",
    "S://bob:P@127.0.0.1:1/db#x",
    "S://bob:P@127.0.0.1:1,127.0.0.1:2/db",
    "S://bob:P@127.0.0.1:1+127.0.0.1:2/db",
    "S://bob:P@h st/db",
    "S://bob:P@unix(/run/x.sock)/db",
    "S//bob:P@127.0.0.1:1/db",
    "S:/bob:P@127.0.0.1:1/db",
    "S:bob:P@127.0.0.1:1/db",
    " S://bob:P@127.0.0.1:1/db/db ",
    "bob:P@127.0.0.1:1",
    "S://bob:P@127.0.0.1:1/db",
    "S://bob smith:P@127.0.0.1:1/db",
    // Without a host: the password contains no `@` here, because the text after it would be the host of a valid URL.
    "S://bob:P",
    "S://127.0.0.1:1/db?password=P",
    "S:///run/x.sock?db=1&pass=P",
];

impl BadUrl {
    /// The URL with this number.
    pub fn of(seed: u64) -> Self {
        let mut state = seed;
        let draw_below = move |limit: usize| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (bits ^ (bits >> 31)) as usize % limit
        };
        Self::drawn(draw_below)
    }

    /// The URL that follows from these choices. `draw` returns a number below its argument.
    pub fn drawn(mut draw: impl FnMut(usize) -> usize) -> Self {
        let shape = SHAPES[draw(SHAPES.len())];
        let scheme = SCHEMES[draw(SCHEMES.len())];
        let mut password = LETTERS[draw(7)].to_string();
        for _ in 0..5 + draw(12) {
            let letters = if draw(3) == 0 { SPECIAL } else { LETTERS };
            password.push(letters[draw(letters.len())]);
        }
        password.push(LETTERS[draw(7)]);
        if !shape.contains("P@") {
            password = password.replace('@', "Q");
        }
        let url = shape.replacen('S', scheme, 1).replacen('P', &password, 1);
        Self { url, password }
    }
}

/// The first four characters in a row of the password that a text contains. Runs with fewer than two letters or digits
/// do not count: a message may contain them by chance.
pub fn leaked(text: &str, password: &str) -> Option<String> {
    let characters: Vec<char> = password.chars().collect();
    let mut windows = characters.windows(4).filter(|window| {
        let letters = window.iter().filter(|c| c.is_alphanumeric());
        letters.count() >= 2
    });
    windows.find_map(|window| {
        let window: String = window.iter().collect();
        let escaped = window.escape_debug().to_string();
        (text.contains(&window) || text.contains(&escaped)).then_some(window)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_characters_of_a_password_in_a_text_are_found() {
        assert_eq!(leaked("say aQX7b", "ZQX7bZ"), Some("QX7b".to_owned()));
        assert_eq!(leaked("say QX\\n7b", "ZQX\n7b"), Some("QX\n7".to_owned()));
        assert_eq!(leaked("say QX7 ://b", "ZQX7://b"), None);
    }

    #[test]
    fn no_url_contains_four_characters_of_a_password_outside_it() {
        let password: String = LETTERS.iter().chain(SPECIAL).collect();
        for around in SHAPES.iter().chain([&OTHER_URL]) {
            let characters: Vec<char> = around.chars().filter(|c| !"SP".contains(*c)).collect();
            for four in characters.windows(4) {
                let letters = four.iter().filter(|c| LETTERS.contains(c)).count();
                let all_can_be_drawn = four.iter().all(|c| password.contains(*c));
                assert!(letters < 2 || !all_can_be_drawn, "{four:?} in {around}");
            }
        }
    }

    #[test]
    fn generated_urls_contain_their_passwords_and_every_shape() {
        let bad_urls: Vec<BadUrl> = (0..2000).map(BadUrl::of).collect();
        for bad_url in &bad_urls {
            assert!(bad_url.url.contains(&bad_url.password), "{bad_url:?}");
        }
        for shape in SHAPES {
            let (_, end) = shape.split_once('P').expect("a password");
            assert!(
                bad_urls.iter().any(|bad_url| bad_url.url.ends_with(end)),
                "{shape}"
            );
        }
    }
}
