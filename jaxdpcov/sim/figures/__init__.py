"""Ready studies of published figures, as TOML files beside this one; `jaxdpcov study --list` names them."""
