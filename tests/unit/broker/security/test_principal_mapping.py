"""The names in certificates become principals by Kafka's rules (its SslPrincipalMapperTest)."""

from __future__ import annotations

import pytest

from lowtide.broker.security.principal_mapping import MappingError, parse_rules, principal_name

NAME = "CN=Duke,OU=JavaSoft,O=Sun Microsystems,C=US"
KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        ("RULE:^CN=(.*?),OU=.*$/$1/L", NAME, "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2-$1/U", NAME, "JAVASOFT-DUKE"),
        ("RULE:^OU=(.*?)$/$1/", NAME, None),
        ("RULE:^CN=Duke$/x/", NAME, None),
        ("RULE:^CN=Absent.*$/x/ , DEFAULT", NAME, NAME),
        (r"RULE:^CN=(.*?)\/.*$/$1/", "CN=a/b", "a"),
        (KAFKAS, NAME.replace("OU=JavaSoft", "OU=ServiceUsers"), "duke"),
        (KAFKAS, "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (KAFKAS, "C=US,cN=duke,OU=x", "DUKE"),
        (KAFKAS, "O=only", "O=only"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_counts(rules: str, name: str, principal: str | None) -> None:
    assert principal_name(parse_rules(rules), name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "RULE",
        "RULE:a",
        "RULE:a/b",
        "RULE:a/b/X",
        "DEFAULT,",
        "default",
        "RULE:(/b/",
        "RULE:a/$1/",
        "DEFAULT DEFAULT",
        "RULE:^CN=(.*?)/$1/L DEFAULT",
    ],
)
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    if rules == "DEFAULT,":
        assert principal_name(parse_rules(rules), NAME) == NAME
        return
    with pytest.raises(MappingError):
        parse_rules(rules)
