"""Networks that leave the house: checked, and certified on a device."""
