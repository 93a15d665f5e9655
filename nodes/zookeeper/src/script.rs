//! The requests of [`prepare`](crate::prepare) as commands for `zkCli.sh`.

use std::fmt::Write as _;

use crate::address::{Address, BadUrl, with_port};
use crate::layout::{Layout, SERVER_NAME_PATH, random_name};

/// Returns a shell script that runs `zkCli.sh` to create the same znodes as [`prepare`](crate::prepare). This function
/// does not connect to the server.
///
/// - The script contains a new random name for the ensemble. Generate a separate script for each ensemble.
/// - The script contains the word `PASSWORD` instead of the password of `url`.
/// - Existing znodes are kept: `zkCli.sh` reports an error for each of them and continues.
/// - The script does not change the ACLs of existing znodes. Use [`prepare`](crate::prepare) for that.
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn script(url: &str) -> Result<String, BadUrl> {
    let address = Address::parse(url)?;
    let layout = Layout::new(&address);
    let hosts: Vec<String> = address.hosts.iter().map(|host| with_port(host)).collect();
    let mut out = format!(
        "# The znodes of quorate below {}. Print a new script for each ensemble: it contains a random name.\n\
         # An existing znode is kept, and reported with the error \"Node already exists\".\n\
         zkCli.sh -server {} <<'END'\n",
        layout.root(),
        hosts.join(",")
    );
    let acl = match &address.user {
        Some(user) => {
            let _ = writeln!(
                out,
                "addauth digest {}",
                quote_argument(&format!("{}:PASSWORD", user.name))
            );
            "auth::cdrwa"
        }
        None => "world:anyone:cdrwa",
    };
    let mut create = |path: &str, data: &str, acl: &str| {
        let _ = writeln!(out, "create {} {data} {acl}", quote_argument(path));
    };
    let parts = layout.root().match_indices('/').skip(1);
    for (end, _) in parts {
        create(&layout.root()[..end], "\"\"", acl);
    }
    for path in [layout.root(), &layout.records(), &layout.wake_ups()] {
        create(path, "\"\"", acl);
    }
    let name = random_name();
    create(SERVER_NAME_PATH, &name, "world:anyone:r");
    // This znode is created last, so its presence shows that all other znodes exist.
    create(&layout.identity(), &name, acl);
    out.push_str("END\n");
    Ok(out)
}

/// An argument as `zkCli.sh` reads it: in quotation marks if it contains a space.
fn quote_argument(text: &str) -> String {
    let quotation_mark = if text.contains('"') { '\'' } else { '"' };
    if text.contains(char::is_whitespace) {
        format!("{quotation_mark}{text}{quotation_mark}")
    } else {
        text.to_owned()
    }
}
